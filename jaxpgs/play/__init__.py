"""A board for people: to play against a search, and to watch it think.

`show` makes a `Board` for notebooks and programs; `python -m jaxpgs.play` serves one as a page.
docs/play.md has what both can do. A `visit.Visit` is the game as a value, with the messages
that pages send; `games` says what a board looks like; `board.js` draws it in a browser, and
`drawing` where no browser is.
"""

from jaxpgs.play.board import Board, show

__all__ = ["Board", "show"]
