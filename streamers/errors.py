"""Errors that a reader of streamed text gets.

    StreamerError                 (RuntimeError)
    └── ProducerError             generation failed; the original exception is its cause
        └── ProducerDiedError     the generating thread ended without `end` or an error

Misuse raises `ValueError` or `TypeError`, and a reader that waits longer than its `timeout` gets
`queue.Empty` or `TimeoutError`, as the documented streamers do.
"""

from __future__ import annotations


class StreamerError(RuntimeError):
    """Base of the errors of this package."""


class ProducerError(StreamerError):
    """The generating side raised; `__cause__` is its error."""


class ProducerDiedError(ProducerError):
    """The thread that put the last token has ended, and the end of the stream never came."""
