from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from asyncgen_apps.bench.models import Checkpoint
from asyncgen_apps.bench.peers.rows import (
    FIGURES,
    SECTIONS,
    SIZES,
    Row,
    ShortAnswerError,
    figures,
    rows,
)

if TYPE_CHECKING:
    from pathlib import Path

    from asyncgen_apps.bench.peers.programs.protocol import Answers, Request


@pytest.fixture
def found(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path, vocab=1000, has_end=False)


def test_every_section_has_sizes_and_figures() -> None:
    assert SECTIONS.keys() == SIZES.keys()
    assert all(figure in FIGURES for section in SECTIONS.values() for figure in section.figures)


@pytest.mark.parametrize(
    ("section", "size", "prompts", "new"),
    [
        ("one", 1, [32], [64]),
        ("first", 512, [512], [1]),
        ("turn", 256, [256], [32]),
        ("behind", 2048, [2048], [33]),
    ],
)
def test_a_lone_request(
    section: str, size: int, prompts: list[int], new: list[int], found: Checkpoint
) -> None:
    row = Row(section, "135m", "float32", size)
    requests = row.requests(found, seed=1)
    assert [len(one["prompt"]) for one in requests] == prompts
    assert [one["new_tokens"] for one in requests] == new
    assert row.streams == 1
    assert requests != row.requests(found, seed=2)
    assert requests == row.requests(found, seed=1)


@pytest.mark.parametrize("section", ["streams", "neighbour"])
def test_many_streams_begin_together(section: str, found: Checkpoint) -> None:
    row = Row(section, "135m", "float32", 32)
    requests = row.requests(found, seed=1)
    assert len(requests) == row.streams == 32
    assert {one["new_tokens"] for one in requests} == {32}
    assert {one["arrival"] for one in requests} == {0.0}
    assert all(16 <= len(one["prompt"]) <= 64 for one in requests)


def test_arrivals_come_two_a_second(found: Checkpoint) -> None:
    row = Row("arrivals", "135m", "float32", 400)
    requests = row.requests(found, seed=1)
    arrivals = [one["arrival"] for one in requests]
    assert arrivals == sorted(arrivals) and arrivals[0] == 0.0
    assert 160 < arrivals[-1] < 240
    assert all(64 <= len(one["prompt"]) <= 1024 for one in requests)
    assert all(16 <= one["new_tokens"] <= 256 for one in requests)


@pytest.mark.parametrize("section", list(SECTIONS))
def test_every_request_fits_the_announced_length(section: str, found: Checkpoint) -> None:
    for size in SIZES[section]:
        row = Row(section, "135m", "float32", size)
        requests = row.requests(found, seed=3)
        if row.is_turn:
            requests.append(row.next_turn(found, requests[0], [7] * 32, seed=4))
        assert len(requests) - row.is_turn == row.streams
        longest = max(len(one["prompt"]) + one["new_tokens"] for one in requests)
        assert longest <= row.length


def test_next_turn_continues_with_the_answer(found: Checkpoint) -> None:
    row = Row("turn", "135m", "float32", 100)
    (before,) = row.requests(found, seed=1)
    after = row.next_turn(found, before, [5, 6], seed=2)
    assert after["prompt"][:102] == [*before["prompt"], 5, 6]
    assert (len(after["prompt"]), after["new_tokens"]) == (134, 1)


def test_rows_of_chosen_sections_shapes_and_sizes() -> None:
    listed = rows(["one", "streams"], [], ["float32"], {"streams": (1, 8)})
    assert [row.label for row in listed] == [
        "5m float32",
        "135m float32",
        "0.5b float32",
        "135m float32, 1",
        "135m float32, 8",
    ]
    listed = rows(["first"], ["5m"], ["float32", "bfloat16"], {"first": (2048,)})
    assert [row.label for row in listed] == ["5m float32, 2,048", "5m bfloat16, 2,048"]


def asked(*requests: tuple[int, float]) -> list[Request]:
    return [{"prompt": [1], "new_tokens": new, "arrival": at} for new, at in requests]


def answered(*times: list[float]) -> Answers:
    return {"times": list(times), "tokens": [[9] * len(one) for one in times]}


def test_figures_of_a_run() -> None:
    got = figures(asked((3, 0.0), (2, 0.5)), answered([0.1, 0.2, 0.4], [0.9, 2.5]))
    assert got == pytest.approx(
        {
            "rate": 5 / 2.5,
            "first_p50": 100,
            "first_p99": 400,  # from its arrival, not from the beginning
            "gap_p99": 1600,
            "decode_rate": 3 / (0.3 + 1.6),
        }
    )


def test_a_lone_token_has_no_gap() -> None:
    assert figures(asked((1, 0.0)), answered([0.2])).keys() == {"rate", "first_p50", "first_p99"}


def test_figures_refuse_short_answers() -> None:
    with pytest.raises(ShortAnswerError, match="answer 1 has 2 tokens at 2 times, 3 were asked"):
        figures(asked((1, 0.0), (3, 0.0)), answered([0.1], [0.1, 0.2]))
    late: Answers = {"times": [[0.1]], "tokens": [[1, 2]]}
    with pytest.raises(ShortAnswerError, match="2 tokens at 1 times"):
        figures(asked((2, 0.0)), late)
