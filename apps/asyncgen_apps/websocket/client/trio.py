"""Extend the library's trio connection so that dropping it always ends its reader.

Imported on trio only.
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
        """Pass a message on; one that arrives while the connection is dropped is lost."""
        with suppress(EOFError):
            super().process_event(event)

    async def close_stream(self) -> None:
        """Close the stream, and wake the reader of the library.

        The reader waits for space while its queue of messages is full. Nobody empties the queue of
        a dropped connection, so leaving the connection would wait for ever.
        """
        try:
            await super().close_stream()
        finally:
            if self.recv_flow_control is not None:
                self.recv_flow_control.set()
