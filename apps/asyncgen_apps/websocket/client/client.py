"""Read streams of a model behind a WebSocket, as from ``asyncgen.AsyncLLM``.

    async with connect("ws://localhost:8765") as client:
        async for text in client.stream("Once upon a time"):
            print(text, end="", flush=True)

Runs on asyncio and trio and loads no torch. After a lost connection the client connects again, and
every stream resumes behind its last received piece: nothing twice, nothing missing.
"""

from __future__ import annotations

import secrets
import time
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from asyncgen import EngineClosedError, InvalidRequestError
from asyncgen_apps.websocket.client.errors import (
    ConnectionLostError,
    RemoteError,
    UnauthorizedError,
)
from asyncgen_apps.websocket.client.link import Address, Link, Patience
from asyncgen_apps.websocket.client.params import wire_params, wire_prompt
from asyncgen_apps.websocket.client.request import Request
from asyncgen_apps.websocket.client.stream import RemoteStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from ssl import SSLContext
    from typing import Unpack

    from asyncgen import Completion, Prompt, StreamParams
    from asyncgen_apps.websocket.messages import Limits

_SEED_BITS = 53
"""Bits of an integer that every JSON parser reads exactly."""

__all__ = [
    "Client",
    "ConnectionLostError",
    "Patience",
    "RemoteError",
    "RemoteStream",
    "UnauthorizedError",
    "connect",
]


class Client:
    """Source of async text streams from the model of a server, any number at once.

    Made by :func:`connect`. It belongs to the event loop that made it.
    """

    def __init__(self, link: Link) -> None:
        """Use a link that is connected; use :func:`connect`."""
        self._link = link

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> RemoteStream:
        """Answer a prompt as a stream of text. Nothing is sent before the first read.

        More streams than the server allows on a connection wait for an earlier one to end.

        Args:
            prompt: A text, a list of chat messages, or a list of token ids.
            **params: See :class:`~asyncgen.StreamParams`; ``None`` means not given. Values must
                be JSON; the server checks names and ranges.

        Returns:
            The stream. Iterate over it, or over its ``events()``; leaving the loop cancels it.

        Raises:
            InvalidRequestError: The prompt is not valid, or a value cannot be sent.
            EngineClosedError: The client was closed.
        """
        if self._link.closed:
            raise EngineClosedError("the client is closed: open another one with `connect`")
        sent = wire_params(params)
        if self._link.may_move:
            sent.setdefault("seed", secrets.randbits(_SEED_BITS))
        request = Request(wire_prompt(prompt), sent, time.monotonic)
        return RemoteStream(self._link, request)

    async def generate(self, prompt: Prompt, **params: Unpack[StreamParams]) -> Completion:
        """Answer a prompt and return the whole result.

        Args:
            prompt: As in :meth:`stream`.
            **params: As in :meth:`stream`.

        Returns:
            Text, ids, counts and timings; several samples where asked for.

        Raises:
            AsyncgenError: As in :meth:`stream`, or while the stream is read.
        """
        async with self.stream(prompt, **params) as stream:
            async for _ in stream.events():
                pass
        return stream.result

    @property
    def is_healthy(self) -> bool:
        """True if the client is open and the server's engine has not died."""
        return not (self._link.closed or self._link.engine_died)

    @property
    def healthy(self) -> bool:
        """Old name of `is_healthy`."""
        message = "`healthy` is deprecated and goes with the next release; read `is_healthy`"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.is_healthy

    @property
    def model(self) -> str:
        """Name of the server's model."""
        return self._hello.model

    @property
    def limits(self) -> Limits:
        """Limits of the server, as last received."""
        return self._hello.limits

    @property
    def _hello(self) -> Any:
        assert self._link.hello is not None, "connect() returns after the hello"
        return self._link.hello


@asynccontextmanager
async def connect(
    url: str | Sequence[str],
    *,
    token: str | None = None,
    tls: SSLContext | None = None,
    patience: Patience | None = None,
) -> AsyncIterator[Client]:
    """Connect to a server; on leaving, streams that still run end with ``"aborted"``.

    The first connection is tried once. Later ones are tried with growing random pauses until the
    ``outage`` of ``patience`` is over; then the streams fail. A stream begun after that tries anew.

    Args:
        url: Address of the server: ``ws://host:port``, or ``wss://…`` for TLS. Or several servers
            of the same model: if one is lost, streams resume at the next behind the received
            tokens. :attr:`RemoteStream.is_exact` tells whether one server would generate the same.
        token: Bearer token, sent as it is: over ``ws://`` the network can read it.
        tls: Trusted certificates for ``wss://``; ``None`` for those of the system.
        patience: Timeouts; ``None`` for the defaults.

    Yields:
        The client.

    Raises:
        InvalidRequestError: An address or the token cannot be used.
        UnauthorizedError: The token is missing or not valid.
        OverloadedError: The server takes no more connections for now.
        ConnectionLostError: The server cannot be reached.
    """
    urls = [url] if isinstance(url, str) else list(url)
    if not urls:
        raise InvalidRequestError("url", url, "at least one address")
    addresses = [Address(_checked_url(one, tls), _headers(token), tls) for one in urls]
    link = Link(addresses, patience or Patience())
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        try:
            await link.settled.wait()
            if link.first is None:
                yield Client(link)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            # Raised after the task group, which would wrap it in an exception group.
            failure = error
        finally:
            link.close()
    if failure is not None:
        raise failure
    if link.first is not None:
        raise link.first


def _checked_url(url: str, tls: SSLContext | None) -> str:
    """Return the address if it is valid.

    Raises:
        InvalidRequestError: It is not valid.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("ws", "wss") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username or parts.password or parts.fragment:
        raise InvalidRequestError("url", url, "ws://host:port or wss://host:port, and a path")
    if tls is not None and parts.scheme == "ws":
        raise InvalidRequestError("tls", tls, "only of use with a wss:// address")
    return url


def _headers(token: str | None) -> dict[str, str]:
    """Return the headers with a token.

    Raises:
        InvalidRequestError: It has characters that a header cannot have; the error hides it.
    """
    if token is None:
        return {}
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequestError("token", "***", "visible ASCII characters without spaces")
    return {"Authorization": f"Bearer {token}"}
