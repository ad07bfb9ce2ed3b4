"""Stream text from token ids: to the terminal, to a blocking iterator, or to an event loop.

The streamers work with any `generate(streamer=…)` that calls `put` and `end`. Their parts can be
used alone: `Detokenizer` turns ids into exact text step by step, `StopStrings` ends it at a stop
string, `Mailbox` and `LoopBell` carry items from a thread into an event loop, `ThreadMailbox` to
another thread, and `Reader` and `ThreadReader` iterate over a stream. Knows nothing of models.
"""

from __future__ import annotations

from streamers.async_iterator_streamer import AsyncTextIteratorStreamer
from streamers.base_streamer import BaseStreamer, RowText
from streamers.detokenizer import Detokenizer
from streamers.errors import ProducerDiedError, ProducerError, StreamerError
from streamers.iterator_streamer import TextIteratorStreamer
from streamers.stop_strings import StopStrings
from streamers.stream_reader import Reader, ThreadReader
from streamers.text_streamer import TextStreamer
from streamers.thread_mailbox import ThreadMailbox, get_interruptibly
from streamers.wakeup import LoopBell, Mailbox

__all__ = [
    "AsyncTextIteratorStreamer",
    "BaseStreamer",
    "Detokenizer",
    "LoopBell",
    "Mailbox",
    "ProducerDiedError",
    "ProducerError",
    "Reader",
    "RowText",
    "StopStrings",
    "StreamerError",
    "TextIteratorStreamer",
    "TextStreamer",
    "ThreadMailbox",
    "ThreadReader",
    "get_interruptibly",
]
