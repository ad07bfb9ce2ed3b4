"""A server that does what a script tells it to, right or wrong, in a thread of its own.

It has an event loop of its own, so that the client under test may run on asyncio or trio.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response

LIMITS = {
    "max_message_bytes": 10_000,
    "max_requests": 8,
    "max_prompt_tokens": None,
    "grace_seconds": 30.0,
    "replay_bytes": 1_000_000,
}
FIGURES = {
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 1},
    "timing": {"queue": 0.1, "first_token": 0.2, "total": 0.9, "tokens_per_second": 5.0},
}


class Peer:
    """One connection, as a script sees it.

    Attributes:
        number: Which connection it is, from 0.
        heard: What the client has said on it, pings left out.
    """

    def __init__(self, connection: ServerConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.heard: list[dict[str, Any]] = []
        self.pongs = True

    async def say(self, kind: str, **fields: Any) -> None:
        """Send a message."""
        await self.connection.send(json.dumps({"type": kind, **fields}))

    async def hello(self, *, takes_over: bool = False, **limits: Any) -> None:
        """Send the first message."""
        await self.say(
            "hello",
            protocol="asyncgen.v1",
            model="scripted",
            limits={**LIMITS, **limits},
            heartbeat_seconds=20.0,
            authenticated=False,
            takes_over=takes_over,
        )

    async def accept(self, name: str, token: str = "secret") -> None:
        """Accept a request."""
        await self.say("accepted", id=name, resume_token=token, queue_position=None)

    async def delta(self, name: str, seq: int, text: str, **fields: Any) -> None:
        """Send a piece of text, and its number as its token id."""
        fields = {"token_ids": [seq], "time": seq / 10, **fields}
        await self.say("delta", id=name, seq=seq, text=text, **fields)

    async def done(self, name: str, seq: int, reason: str = "stop", **fields: Any) -> None:
        """Send the end."""
        await self.say("done", id=name, seq=seq, finish_reason=reason, **{**FIGURES, **fields})

    async def hear(self) -> dict[str, Any]:
        """Return the next message of the client that is no ping; pings are answered."""
        while True:
            message: dict[str, Any] = json.loads(await self.connection.recv())
            if message["type"] != "ping":
                self.heard.append(message)
                return message
            if self.pongs:
                # The client may have left already; what it said before that is still to be heard.
                with suppress(ConnectionClosed):
                    await self.say("pong", nonce=message["nonce"])

    async def start(self, **limits: Any) -> str:
        """Greet, accept the first request, and return its id."""
        await self.hello(**limits)
        message = await self.hear()
        await self.accept(message["id"])
        return str(message["id"])

    async def answer(self, name: str, pieces: str, after: int = 0) -> None:
        """Send the characters of ``pieces`` one by one, and the end."""
        for seq, text in enumerate(pieces, start=1):
            if seq > after:
                await self.delta(name, seq, text)
        await self.done(name, len(pieces) + 1)

    async def linger(self) -> None:
        """Listen until the client leaves."""
        while True:
            await self.hear()

    def cut(self) -> None:
        """Drop the connection without a word."""
        self.connection.transport.abort()


class ScriptedServer:
    """Runs one script for each connection, in a thread; a context manager.

    Attributes:
        peers: The connections so far.
        url: Where it is.
        requests: The opening requests so far.
    """

    def __init__(
        self,
        script: Callable[[Peer], Awaitable[None]],
        refuse: Callable[[Request], Response | None] | None = None,
    ) -> None:
        self._script = script
        self._refuse = refuse
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.peers: list[Peer] = []
        self.requests: list[Request] = []
        self.failures: list[BaseException] = []
        self.url = ""
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()
        if error is None and self.failures:
            raise self.failures[0]

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()

        def process(_: ServerConnection, request: Request) -> Response | None:
            self.requests.append(request)
            return self._refuse(request) if self._refuse else None

        async with serve(
            self._handle,
            "127.0.0.1",
            0,
            subprotocols=[Subprotocol("asyncgen.v1")],
            compression=None,
            ping_interval=None,
            close_timeout=60,
            process_request=process,
        ) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            self.url = f"ws://127.0.0.1:{self.port}/"
            self._ready.set()
            await self._stop.wait()
            server.close(close_connections=False)
            for peer in self.peers:
                peer.cut()

    async def _handle(self, connection: ServerConnection) -> None:
        peer = Peer(connection, len(self.peers))
        self.peers.append(peer)
        try:
            await self._script(peer)
        except ConnectionClosed:
            pass
        except Exception as error:
            self.failures.append(error)
