"""Limit connections by the files that this process may open, and open listening sockets.

A server without free files can neither accept connections nor open its own files, so that one
client with many connections could block all others. Knows the limit of the process; no server.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

try:
    import resource
except ImportError:  # not on Windows, where sockets are no files
    resource = None  # type: ignore[assignment]


HEAD_BYTES = 64 * 1024
"""Default limit for the head of a request."""

LINGER_BYTES = 1024 * 1024
"""Bytes that a refused client may still send, so that it can read the refusal."""

UNSENT_BYTES = 32 * 1024
"""Bytes that the kernel keeps unsent for a connection. It would keep megabytes, and ask for more
only once a third of them is read: a client that reads slowly would seem to read nothing."""

MOST = 4096
"""Default limit of connections, however many files may be open: each takes memory."""

RESERVE = 32
"""Connections above the limit that are told that the server is full, or ask for its health."""

_OWN_FILES = 96
"""Files of a process besides its connections: libraries, weights, pipes, the event loop."""


def room(listeners: int = 1) -> int:
    """Return the most connections that each listening socket can have, at least 1.

    Args:
        listeners: Sockets of this process that share its files.
    """
    files = open_files()
    if files is None:
        return MOST
    # Under a very low limit, half of the files are for connections.
    free = max(files - _OWN_FILES, files // 2)
    return min(MOST, max(1, free // listeners - RESERVE))


def open_files() -> int | None:
    """Return the most files that this process may open; ``None`` if there is no limit."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def too_many(most: int, listeners: int = 1) -> str | None:
    """Return the reason why so many connections are impossible; ``None`` if they are possible.

    Args:
        most: Most connections of each listening socket.
        listeners: Sockets of this process that share its files.
    """
    files = open_files()
    if files is None or most <= 1 or (most + RESERVE) * listeners <= files - _OWN_FILES:
        return None
    there = room(listeners)
    if most <= there:
        return None
    return f"this process may open {files} files (ulimit -n), which leaves room for {there}"


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Open a listening socket; clients can connect from now on, and wait.

    Args:
        host: Name or address.
        port: Port; 0 chooses one.
        backlog: Most connections that wait to be accepted.

    Raises:
        OSError: The port is in use, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    plain = socket.create_server((host, port), family=family, backlog=backlog)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections have what their listener has
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return Listener(fileno=plain.detach())


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Tell whether the other end has closed a connection, or its half of it; on Linux.

    The kernel knows also while something that came before is not read.
    """
    wire = transport.get_extra_info("socket")
    if wire is None or wire.fileno() < 0:
        return True
    if not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(wire.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


class Listener(socket.socket):
    """Listening socket that refuses a connection if no file is left for it.

    asyncio would retry many times at once and stay busy for minutes after files are free again.
    (uvloop does the same as this class.) One spare file is kept open: it is closed, the connection
    is accepted and closed, and the file is opened again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As a socket."""
        super().__init__(*args, **kwargs)
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            ConnectionAbortedError: A connection was refused; others may wait.
        """
        if self._spare is None:
            self._keep_spare()
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse()
            raise ConnectionAbortedError("no file is left for a connection") from error

    def close(self) -> None:
        """As a socket."""
        super().close()
        self._free_spare()

    def _refuse(self) -> None:
        self._free_spare()
        try:
            refused, _ = super().accept()
            refused.close()
        except OSError:
            pass  # the client has left, or another thread accepted it
        self._keep_spare()

    def _keep_spare(self) -> None:
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            pass  # retried at the next connection

    def _free_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)
