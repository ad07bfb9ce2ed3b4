"""Test that sent messages can be replayed from any number, within a bound."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen import TokenLogprob, TopLogprob
from asyncgen_apps.websocket import replay as replays
from asyncgen_apps.websocket.replay import LONGEST, Piece, Replay

PIECES = st.lists(
    st.tuples(st.integers(0, 2), st.text("aé🦊", min_size=1, max_size=4), st.booleans()),
    max_size=40,
)


@settings(deadline=None)
@given(said=PIECES, place=st.integers(0, 60), most=st.integers(1, 3000))
def test_every_tail_is_exact(said: list[tuple[int, str, bool]], place: int, most: int) -> None:
    replay = Replay(10**6)
    sent: list[Piece] = []
    for index, text, is_taken in said:
        replay.add(Piece(index, text, tuple(text.encode())))
        if is_taken:
            sent += replay.take()
    sent += replay.take()
    assert [piece.seq for piece in sent] == list(range(1, len(sent) + 1))
    assert not replay.is_waiting
    after = min(place, replay.last_seq)
    replay.rewind(after)
    again: list[Piece] = []
    while replay.is_waiting:
        portion = replay.take(most)
        assert sum(piece.size for piece in portion) < most + 1000
        again += portion
    number = after
    for piece in again:
        assert piece.first_seq == number + 1
        number = piece.seq
    assert number == replay.last_seq
    for index in range(3):
        told = "".join(text for i, text, _ in said if i == index)
        assert told == "".join(piece.text for piece in sent if piece.index == index)
        tail = "".join(piece.text for piece in sent[after:] if piece.index == index)
        assert tail == "".join(piece.text for piece in again if piece.index == index)
        ids = [i for piece in again if piece.index == index for i in piece.token_ids or ()]
        assert bytes(ids).decode() == tail


def test_waiting_pieces_merge_up_to_the_longest_size() -> None:
    replay = Replay(10**6)
    for _ in range(1000):
        replay.add(Piece(0, "word "))
    taken = replay.take()
    assert 1 < len(taken) < 20
    assert max(piece.size for piece in taken) <= LONGEST
    assert "".join(piece.text for piece in taken) == "word " * 1000


def test_the_bound_drops_the_oldest() -> None:
    replay = Replay(2000)
    for number in range(100):
        replay.add(Piece(0, str(number)))
        replay.take()
        assert replay.size <= 2000
    assert 80 < replay.first_kept < 100
    assert not replay.overflows
    replay.rewind(replay.first_kept - 1)
    kept = replay.take()
    assert kept[0].first_seq == replay.first_kept
    assert kept[-1].seq == 100


def test_what_is_to_be_sent_again_is_kept_until_then() -> None:
    replay = Replay(2000)
    for number in range(100):
        replay.add(Piece(0, str(number)))
        replay.take()
    first = replay.first_kept
    replay.rewind(first + 1)
    for number in range(100, 109):
        replay.add(Piece(0, str(number)))
    assert replay.first_kept == first + 2, "and what came before it goes"
    again = replay.take(1)
    assert [piece.seq for piece in again] == [first + 2]
    rest = replay.take()
    assert rest[0].first_seq == first + 3
    assert "".join(piece.text for piece in again + rest) == "".join(map(str, range(first + 1, 109)))
    assert replay.size <= 2000


def test_resuming_a_long_answer_merges_no_more_than_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replay = Replay(10**9)
    for number in range(5000):
        replay.add(Piece(0, str(number)))
        replay.take()
    merged: list[Piece] = []

    def noted(found: list[Any], piece: Piece) -> None:
        merged.append(piece)
        merge(found, piece)

    merge = replays._merge
    monkeypatch.setattr(replays, "_merge", noted)
    for _ in range(100):
        replay.rewind(0)
    assert not merged
    assert replay.take(20_000)
    assert len(merged) < 200


def test_untaken_pieces_overflow_and_are_kept() -> None:
    replay = Replay(1000)
    replay.add(Piece(0, "x" * 500))
    assert not replay.overflows
    replay.add(Piece(0, "x" * 500))
    assert replay.overflows
    assert replay.take()[0].text == "x" * 1000


@pytest.mark.parametrize("text", ["plain", "füchse", "🦊"])
def test_piece_sizes_are_not_below_the_memory_kept(text: str) -> None:
    import sys

    top = tuple(TopLogprob(i, "t", -1.0) for i in range(5))
    logprobs = (TokenLogprob(1, "t", -1.0, top),)
    piece = Piece(0, text * 100, (1000,), logprobs, 0.5)
    parts = (piece, piece.text, piece.token_ids, 1000, logprobs, *logprobs, top, *top)
    assert piece.size >= 0.8 * sum(map(sys.getsizeof, parts))
