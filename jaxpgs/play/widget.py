"""The board as an anywidget."""

import pathlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxpgs.play.board import Board

FOLDER = pathlib.Path(__file__).parent


def make_widget(board: "Board") -> Any:
    """Makes the widget of a board.

    It carries messages both ways, and a view sends "hello" when it opens. Its only state is a
    picture, which is shown if there is no kernel, for example in an exported notebook.

    Raises:
      ImportError: if anywidget is not installed.
    """
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ImportError('A widget needs anywidget: pip install "jaxpgs[play]".') from error

    class BoardWidget(anywidget.AnyWidget):  # type: ignore[misc]
        _esm = (FOLDER / "board.js").read_text("utf-8")
        _css = (FOLDER / "board.css").read_text("utf-8")
        picture = traitlets.Unicode().tag(sync=True)

    widget = BoardWidget()
    # A reply to one view, such as the position when it opens, may also go to the others.
    widget.on_msg(lambda _, said, buffers: board.handle(said, widget.send))
    board.listen(widget.send)
    return widget
