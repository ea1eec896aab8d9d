"""An interactive board on which people play against a search and watch it think.

`show` makes a `Board` for notebooks and programs; `python -m jaxpgs.play` serves one as a page.
docs/play.md describes the features of both. A `visit.Visit` is the game as a value; `protocol` has
the messages that pages send; `games` describes the look of boards. `board.js` draws a board in a
browser, and `drawing` draws a static picture of it.
"""

from jaxpgs.play.board import Board, show

__all__ = ["Board", "show"]
