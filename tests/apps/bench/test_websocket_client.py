"""The client of the benchmark notices what is lost, out of order or broken."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen_apps.bench.websocket_client import Wire, tell


def delta(seq: int, text: str, **more: Any) -> tuple[float, dict[str, Any]]:
    return float(seq), {"type": "delta", "id": "a", "seq": seq, "text": text, "index": 0, **more}


def done(seq: int) -> tuple[float, dict[str, Any]]:
    return 9.0, {"type": "done", "id": "a", "seq": seq, "usage": {"completion_tokens": 5}}


def test_a_whole_stream() -> None:
    one = tell([delta(1, "ab"), delta(3, "c", first_seq=2), done(4)])["a"]
    assert one.in_order and one.tokens == 5
    assert one.deltas == [(1.0, 2), (3.0, 3)]


@pytest.mark.parametrize("broken", [[delta(2, "b")], [delta(1, "a"), delta(1, "a")], [done(2)]])
def test_a_gap_or_a_repetition(broken: list[tuple[float, dict[str, Any]]]) -> None:
    assert not tell(broken)["a"].in_order


def test_errors() -> None:
    assert tell([(1.0, {"type": "error", "id": "a", "code": "internal"})])["a"].error == "internal"
    with pytest.raises(RuntimeError, match="too much"):
        tell([(1.0, {"type": "error", "code": "overloaded", "message": "too much"})])


def test_ends_are_counted_wherever_the_bytes_are_cut() -> None:
    frame = b'{"type":"done","id":"a"}{"type":"error","id":"b"}{"type":"delta"}'
    for cut in range(len(frame) + 1):
        wire = Wire(1)
        wire.data_received(frame[:cut])
        wire.data_received(frame[cut:])
        assert (wire.ends, wire.failures) == (1, 1)
