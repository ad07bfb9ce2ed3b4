"""Words come out whole, ideographs at once, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamers.words import WordHolder

texts = st.lists(st.text(alphabet="ab \n日é\u2b81c𠀀語", max_size=6), max_size=12)


@given(texts)
def test_nothing_is_lost(pieces: list[str]) -> None:
    holder = WordHolder()
    assert "".join(map(holder.put, pieces)) + holder.flush() == "".join(pieces)


@given(texts)
def test_everything_up_to_the_last_end_of_a_word_is_out(pieces: list[str]) -> None:
    holder, shown, text = WordHolder(), "", ""
    for piece in pieces:
        shown += holder.put(piece)
        text += piece
        ends = [i + 1 for i, c in enumerate(text) if c in " \n日語𠀀"]
        assert len(shown) == max(ends, default=0)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["Hel", "lo wor", "ld"], ["", "Hello ", ""]),
        (["a\nb", "c\n"], ["a\n", "bc\n"]),
        (["日", "x本", "y"], ["日", "x本", ""]),
    ],
)
def test_examples(pieces: list[str], expected: list[str]) -> None:
    holder = WordHolder()
    assert [holder.put(piece) for piece in pieces] == expected
