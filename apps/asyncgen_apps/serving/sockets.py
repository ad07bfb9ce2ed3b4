"""Limit connections by the files that this process may open, and open listening sockets.

A server that runs out of files can neither accept nor read its own, and whoever holds the
connections has locked everybody out. Knows the process's limit; nothing of servers.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

try:
    import resource
except ImportError:  # not on Windows, where sockets are no files
    resource = None  # type: ignore[assignment]


HEAD_BYTES = 64 * 1024
"""Longest head of a request, by default."""

LINGER_BYTES = 1024 * 1024
"""How much a client that was refused may go on sending, so that it hears why."""

MOST = 4096
"""Connections by default, however many files may be open: each takes memory as well."""

RESERVE = 32
"""Connections beyond the most: they hear that the server is full, or how it is."""

_OWN_FILES = 96
"""What a process opens beside its connections: libraries, shards, pipes, the loop."""


def room(listeners: int = 1) -> int:
    """Most connections that each of so many listening sockets can take, at least 1.

    Args:
        listeners: Sockets of this process that share its files.
    """
    files = open_files()
    if files is None:
        return MOST
    # A limit as low as this leaves no good choice: half of it.
    free = max(files - _OWN_FILES, files // 2)
    return min(MOST, max(1, free // listeners - RESERVE))


def open_files() -> int | None:
    """Most files that this process may open; ``None`` where there is no limit."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def too_many(most: int, listeners: int = 1) -> str | None:
    """Return the reason why so many connections are impossible; ``None`` if they are possible.

    Args:
        most: Connections that each of the listening sockets is to take.
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
    """Open a listening socket; clients may connect from now on, and wait.

    Args:
        host: Name or address.
        port: 0 chooses one.
        backlog: How many may wait.

    Raises:
        OSError: The port is taken, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    plain = socket.create_server((host, port), family=family, backlog=backlog)
    return Listener(fileno=plain.detach())


class Listener(socket.socket):
    """A listening socket that refuses connections where no file is left for them.

    asyncio would try again and again, each time many times at once: minutes after the files are
    free it still does nothing else. (uvloop does by itself what is done here.) One file is kept
    open for this: it is closed, the connection is accepted and closed, the file is opened again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As a socket."""
        super().__init__(*args, **kwargs)
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            ConnectionAbortedError: One was refused; there may be others.
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
            pass  # it has left, or another thread was faster
        self._keep_spare()

    def _keep_spare(self) -> None:
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            pass  # at the next connection

    def _free_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)
