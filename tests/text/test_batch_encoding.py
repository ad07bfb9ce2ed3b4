"""Tests of `asyncgen.text.batch_encoding`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.errors import InvalidRequestError
from asyncgen.text.batch_encoding import (
    BatchEncoding,
    Side,
    check_side,
    collate,
    pack_rows,
    pad_rows,
    rounded_up,
)


def test_entries_are_attributes() -> None:
    encoding = BatchEncoding(input_ids=[1, 2])
    assert encoding.input_ids == encoding["input_ids"] == [1, 2]
    assert dict(**encoding) == {"input_ids": [1, 2]}
    with pytest.raises(AttributeError, match=r"no entry is called 'labels'; there are \['input"):
        _ = encoding.labels
    assert not hasattr(encoding, "labels")


def test_moving_returns_the_same_object() -> None:
    encoding = BatchEncoding(input_ids=torch.tensor([[1]]), note="kept")
    assert encoding.to("meta") is encoding
    assert encoding.input_ids.is_meta
    assert encoding.note == "kept"


@given(
    rows=st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=4),
    width=st.integers(0, 10),
    side=st.sampled_from(["left", "right"]),
)
def test_padding_keeps_the_tokens(rows: list[list[int]], width: int, side: Side) -> None:
    padded = [list(row) for row in rows]
    masks = [[1] * len(row) for row in rows]
    pad_rows(padded, masks, width=width, pad_id=99, side=side)
    for row, ids, mask in zip(rows, padded, masks, strict=True):
        assert len(ids) == len(mask) == max(width, len(row))
        assert [token for token, real in zip(ids, mask, strict=True) if real] == row
        assert all(token == 99 for token, real in zip(ids, mask, strict=True) if not real)
        assert mask == sorted(mask, reverse=side == "right")


def test_packing() -> None:
    rows = {"input_ids": [[1, 2]], "attention_mask": [[1, 1]]}
    assert pack_rows(rows, single=True, return_tensors=None).input_ids == [1, 2]
    assert pack_rows(rows, single=False, return_tensors=None).input_ids == [[1, 2]]
    packed = pack_rows(rows, single=True, return_tensors="pt")
    assert packed.input_ids.tolist() == [[1, 2]]
    assert packed.attention_mask.dtype == torch.int64
    for ragged in ([[1], [1, 2]], []):
        with pytest.raises(InvalidRequestError, match="`padding=True` where they differ"):
            pack_rows({"input_ids": ragged}, single=False, return_tensors="pt")


def test_sides() -> None:
    assert check_side("padding_side", "left") == "left"
    assert check_side("padding_side", "right") == "right"
    with pytest.raises(InvalidRequestError, match="`truncation_side` is 'both': use 'left'"):
        check_side("truncation_side", "both")


def test_results_are_taken_apart() -> None:
    ids, mask = [1, 2], [1, 1]
    one = BatchEncoding(input_ids=ids, attention_mask=mask)
    assert collate(one) == ({"input_ids": [ids], "attention_mask": [mask]}, True)
    assert collate([one]) == ({"input_ids": [ids], "attention_mask": [mask]}, False)
    assert collate([{"input_ids": ids}, {"input_ids": torch.tensor([3])}]) == (
        {"input_ids": [ids, [3]], "attention_mask": [mask, [1]]},
        False,
    )
    batch = BatchEncoding(input_ids=torch.tensor([ids, ids]), attention_mask=[mask, [0, 1]])
    rows, single = collate(batch)
    assert rows == {"input_ids": [ids, ids], "attention_mask": [mask, [0, 1]]} and not single
    rows["input_ids"][0].append(9)
    assert ids == [1, 2], "what was given stays as it was"
    assert collate({"input_ids": [ids, [3]]}) == (
        {"input_ids": [ids, [3]], "attention_mask": [mask, [1]]},
        False,
    )


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        ([{"attention_mask": [1]}], "`encoded_inputs` is .*what the tokenizer returned"),
        ({"input_ids": [1], "labels": [1]}, "`encoded_inputs` is .*labels"),
        ({"input_ids": [1, 2], "attention_mask": [1]}, "`attention_mask` is .*as long as"),
    ],
)
def test_collate_refuses_invalid_encodings(encoded: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        collate(encoded)


def test_rounding_up() -> None:
    assert [rounded_up(width, 8) for width in (0, 1, 8, 9)] == [0, 8, 8, 16]
    assert rounded_up(5, None) == 5
    for multiple in (0, -2, True, 2.0):
        with pytest.raises(InvalidRequestError, match="`pad_to_multiple_of` is"):
            rounded_up(5, multiple)  # type: ignore[arg-type]
