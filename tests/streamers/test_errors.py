"""The exception tree that the module's docstring draws."""

from __future__ import annotations

from streamers.errors import ProducerDiedError, ProducerError, StreamerError


def test_a_reader_can_catch_all_of_them() -> None:
    assert issubclass(ProducerDiedError, ProducerError)
    assert issubclass(ProducerError, StreamerError)
    assert issubclass(StreamerError, RuntimeError)
