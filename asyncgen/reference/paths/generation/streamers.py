"""Names of the reference's module `transformers.generation.streamers`."""

# ruff: noqa: I001
from asyncgen import (
    AsyncTextIteratorStreamer as AsyncTextIteratorStreamer,
    BaseStreamer as BaseStreamer,
    TextIteratorStreamer as TextIteratorStreamer,
    TextStreamer as TextStreamer,
)
