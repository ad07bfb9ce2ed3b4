"""The library's connection on trio, so that dropping it always ends its reader.

Imported on trio alone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from websockets.trio.client import ClientConnection

if TYPE_CHECKING:
    from websockets.protocol import Event


class TrioConnection(ClientConnection):
    """A connection that may be dropped at any moment."""

    def process_event(self, event: Event) -> None:
        """Hand a message on; one that was read while the connection was dropped is lost."""
        with suppress(EOFError):
            super().process_event(event)

    async def close_stream(self) -> None:
        """Close it, and wake the library's reader.

        While the queue of messages is full the reader waits for space in it, and nobody empties
        the queue of a connection that is gone: leaving the connection would wait for ever.
        """
        try:
            await super().close_stream()
        finally:
            if self.recv_flow_control is not None:
                self.recv_flow_control.set()
