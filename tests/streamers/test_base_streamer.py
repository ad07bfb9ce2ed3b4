"""Prompts, rows and whole words, whoever calls `put`."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamers.base_streamer import RowStreamer, RowText
from streamers.word_buffer import WordBuffer
from tests.streamers.cases import TEXTS, Case


class Recorder(RowStreamer):
    """Keeps what it is given."""

    def __init__(self, case: Case, skip_prompt: bool = False, **decode_kwargs: object) -> None:
        super().__init__(case.tokenizer, skip_prompt, **decode_kwargs)
        self.seen: list[tuple[str, int, bool]] = []

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        assert isinstance(text, RowText)
        self.seen.append((text, text.row, stream_end))

    def text(self, row: int = 0) -> str:
        """All text of a row."""
        return "".join(text for text, its, _ in self.seen if its == row)


def encode(case: Case, text: str) -> list[int]:
    return case.tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("skip_prompt", [False, True])
def test_one_row_is_the_text_of_all_its_ids(case: Case, skip_prompt: bool) -> None:
    for text in TEXTS:
        ids = encode(case, text)
        recorder = Recorder(case, skip_prompt)
        recorder.put(torch.tensor([ids[:5]]))
        for token_id in ids[5:]:
            recorder.put(torch.tensor([token_id]))
        recorder.end()
        assert recorder.text() == case.text(ids[5:] if skip_prompt else ids, True)
        assert [end for *_, end in recorder.seen] == [False] * (len(recorder.seen) - 1) + [True]


def test_texts_of_rows_are_separate(byte_level: Case) -> None:
    rows = [encode(byte_level, text)[:40] for text in TEXTS[:3]]
    recorder = Recorder(byte_level, skip_prompt=True)
    recorder.put(torch.tensor([row[:4] for row in rows]))
    for step in zip(*(row[4:] for row in rows), strict=True):
        recorder.put(torch.tensor(step))
    recorder.end()
    for i, row in enumerate(rows):
        assert recorder.text(i) == byte_level.text(row[4:], True)
    assert [end for *_, end in recorder.seen].count(True) == 1


def test_several_tokens_may_come_at_once(byte_level: Case) -> None:
    ids = encode(byte_level, TEXTS[0])
    for puts in (
        [torch.tensor(ids[:3]), torch.tensor(ids[3:9]), torch.tensor([ids[9:]])],
        [ids[:3], ids[3:9], ids[9], [], [ids[10:]]],
    ):
        recorder = Recorder(byte_level)
        for value in puts:
            recorder.put(value)
        recorder.end()
        assert recorder.text() == byte_level.text(ids, True)


def test_several_tokens_a_row_may_come_at_once(byte_level: Case) -> None:
    rows = [encode(byte_level, text)[:10] for text in TEXTS[:2]]
    recorder = Recorder(byte_level)
    recorder.put(torch.tensor([row[:2] for row in rows]))
    recorder.put(torch.tensor([row[2:] for row in rows]))
    recorder.end()
    assert [recorder.text(i) for i in (0, 1)] == [byte_level.text(row, True) for row in rows]


def test_special_tokens_are_shown_or_skipped(byte_level: Case) -> None:
    special = byte_level.tokenizer.get_vocab()["</s>"]
    ids = [*encode(byte_level, "hi"), special]
    for skip in (True, False):
        recorder = Recorder(byte_level, skip_special_tokens=skip)
        recorder.put([ids])
        recorder.end()
        assert recorder.text() == ("hi" if skip else "hi</s>")


def test_a_streamer_serves_again_after_the_end(byte_level: Case) -> None:
    recorder = Recorder(byte_level, skip_prompt=True)
    for _ in range(2):
        recorder.put(torch.tensor([encode(byte_level, "prompt")] * 2))
        recorder.put(torch.tensor(encode(byte_level, "a")[:1] * 2))
        recorder.end()
    assert recorder.text(1) == "aa"


def test_the_number_of_rows_may_not_change(byte_level: Case) -> None:
    recorder = Recorder(byte_level)
    recorder.put(torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="value has 3 rows, but the prompt had 2"):
        recorder.put(torch.zeros(3, dtype=torch.long))
    single = Recorder(byte_level)
    single.put(torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="value has 2 rows, but the prompt had 1"):
        single.put(torch.zeros(2, 1, dtype=torch.long))


def test_a_tokenizer_must_decode() -> None:
    with pytest.raises(TypeError, match="must have a method decode"):
        type("Plain", (RowStreamer,), {"on_finalized_text": lambda *_: None})(object())


def test_row_text_is_a_string_that_keeps_its_row() -> None:
    text = RowText("abc", 3)
    assert text == "abc"
    for twin in (copy.copy(text), pickle.loads(pickle.dumps(text))):
        assert (twin, twin.row) == ("abc", 3)


texts = st.lists(st.text(alphabet="ab \n日é\u2b81c𠀀語", max_size=6), max_size=12)


@given(texts)
def test_word_buffer_returns_all_text(pieces: list[str]) -> None:
    holder = WordBuffer()
    assert "".join(map(holder.put, pieces)) + holder.flush() == "".join(pieces)


@given(texts)
def test_everything_up_to_the_last_end_of_a_word_is_out(pieces: list[str]) -> None:
    holder, shown, text = WordBuffer(), "", ""
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
    holder = WordBuffer()
    assert [holder.put(piece) for piece in pieces] == expected


def test_arguments_of_decode_may_come_as_the_documented_dict(byte_level: Case) -> None:
    hidden = {"skip_special_tokens": True}
    listed = Recorder(byte_level, decode_kwargs=hidden, clean_up_tokenization_spaces=False)
    assert listed.decode_kwargs == {**hidden, "clean_up_tokenization_spaces": False}
    assert Recorder(byte_level, decode_kwargs={}).decode_kwargs == {}
    assert Recorder(byte_level, decode_kwargs=None).decode_kwargs == {}
    texts = []
    for options in ({"decode_kwargs": hidden}, {**hidden}):
        recorder = Recorder(byte_level, False, **options)
        recorder.put(torch.tensor([[0, *encode(byte_level, "a b")]]))
        recorder.end()
        texts.append(recorder.text())
    assert texts[0] == texts[1]
    with pytest.raises(TypeError, match="decode_kwargs=3 must be a dict"):
        Recorder(byte_level, decode_kwargs=3)
