"""The board as a page on the loopback address, for the user of this machine."""

import asyncio
import contextlib
import json
import socket
from typing import Any
from urllib.parse import urlsplit

from jaxpgs.play.board import Board
from jaxpgs.play.widget import FOLDER

_HOSTS = ("127.0.0.1", "localhost", "::1")
_LONGEST = 2**18  # bytes of a message
_WAITING = 200  # messages by which a slow page may lag behind


def make_app(board: Board) -> Any:
    """Makes the ASGI application.

    It refuses pages of other origins. It also refuses requests with another host name, by which a
    foreign page could reach the loopback address.

    Args:
      board: the game, which all pages share.

    Raises:
      ImportError: if Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import FileResponse
        from starlette.routing import Route, WebSocketRoute
        from starlette.websockets import WebSocket, WebSocketDisconnect
    except ImportError as error:
        raise ImportError('The page needs Starlette: pip install "jaxpgs[play]".') from error

    async def talk(page: WebSocket) -> None:
        await page.accept()
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[str] = asyncio.Queue(_WAITING)

        def put(text: str) -> None:
            if waiting.full():  # a page that is too slow skips to the current position
                while not waiting.empty():
                    waiting.get_nowait()
                loop.run_in_executor(None, board.handle, {"type": "hello"}, tell)
            waiting.put_nowait(text)

        def tell(told: dict[str, Any]) -> None:
            # Searches call this from their own thread, but the queue belongs to the loop.
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(put, json.dumps(told))

        async def send() -> None:
            while True:
                await page.send_text(await waiting.get())

        stop, sender = board.listen(tell), asyncio.create_task(send())
        try:
            while True:
                heard = await page.receive()
                if heard["type"] == "websocket.disconnect":
                    break
                try:
                    said = json.loads(heard.get("text") or heard.get("bytes") or b"")
                except (ValueError, RecursionError):
                    said = None
                # In a thread, as the board may be locked and the loop must not block.
                await asyncio.to_thread(board.handle, said, tell)
        except WebSocketDisconnect:
            pass
        finally:
            stop()
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await sender

    def file(name: str, kind: str) -> Any:
        async def serve_file(request: Any) -> Any:
            return FileResponse(
                FOLDER / name, media_type=kind, headers={"Cache-Control": "no-store"}
            )

        return serve_file

    routes = [
        Route("/", file("page.html", "text/html")),
        Route("/board.js", file("board.js", "text/javascript")),
        Route("/board.css", file("board.css", "text/css")),
        WebSocketRoute("/socket", talk),
    ]
    return _Guard(Starlette(routes=routes))


class _Guard:
    """Refuses requests that do not come from a page of this server."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or _is_own(dict(scope["headers"])):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            start = {"type": "http.response.start", "status": 403, "headers": []}
            await send(start)
            await send({"type": "http.response.body", "body": b"only for pages of this machine\n"})


def _is_own(headers: dict[bytes, bytes]) -> bool:
    host = headers.get(b"host", b"").decode("latin-1")
    origin = headers.get(b"origin", b"").decode("latin-1")
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name in _HOSTS and origin in ("", f"http://{host}")


def serve(board: Board, port: int) -> None:
    """Serves a board until interrupted; prints the address when everything is compiled.

    Args:
      board: the game.
      port: the port; 0 for any free one.

    Raises:
      ImportError: if the extra `play` is not installed.
      OSError: if the port is taken.
    """
    app = make_app(board)
    try:
        import uvicorn
        import websockets  # noqa: F401  # without it uvicorn serves no web sockets
    except ImportError as error:
        needed = 'The page needs uvicorn and websockets: pip install "jaxpgs[play]".'
        raise ImportError(needed) from error
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Before the slow compilation, so that a port in use is reported at once.
        listener.bind(("127.0.0.1", port))
        print("compiling ...", flush=True)
        board.prepare()
        config = uvicorn.Config(
            app, log_level="warning", ws_max_size=_LONGEST, timeout_graceful_shutdown=2
        )
        listener.listen()
        print(f"ready at http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            board.close()
