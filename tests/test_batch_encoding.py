"""Tests of `asyncgen.batch_encoding`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.batch_encoding import BatchEncoding, Side, check_side, pack_rows, pad_rows
from asyncgen.errors import InvalidRequestError


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
