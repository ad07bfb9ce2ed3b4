"""Test `asyncgen.text.vocabulary`; `test_tokenizer` compares look-ups with the reference."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer as Backend

from asyncgen.errors import InvalidRequestError
from asyncgen.text.vocabulary import Vocabulary, as_ids
from tests.cases import for_each
from tests.doubles.tokenizers import tokenizer_json


@pytest.fixture
def vocabulary() -> Vocabulary:
    backend = Backend.from_str(tokenizer_json("wordpiece"))
    special = {"sep_token": "[SEP]", "unk_token": "[UNK]"}
    return Vocabulary(backend, special, ["[MASK]", "[SEP]"])


def test_special_tokens_in_the_order_of_their_roles(vocabulary: Vocabulary) -> None:
    assert vocabulary.all_special_tokens == ["[UNK]", "[SEP]", "[MASK]"]
    assert vocabulary.special_tokens_map == {"unk_token": "[UNK]", "sep_token": "[SEP]"}
    vocabulary.bos_token = "[CLS]"
    assert vocabulary.all_special_tokens[0] == "[CLS]"
    assert len(vocabulary.all_special_ids) == 4


def test_roles_by_token_and_by_id(vocabulary: Vocabulary) -> None:
    assert vocabulary.pad_token is None and vocabulary.pad_token_id is None
    vocabulary.pad_token = "[PAD]"
    assert vocabulary.convert_ids_to_tokens(vocabulary.pad_token_id or 0) == "[PAD]"
    vocabulary.pad_token_id = vocabulary.sep_token_id
    assert vocabulary.pad_token == "[SEP]"
    vocabulary.pad_token_id = None
    assert vocabulary.pad_token is None
    with pytest.raises(InvalidRequestError, match="`cls_token` is 5: give the text of a token"):
        vocabulary.cls_token = 5


def test_the_map_is_a_copy(vocabulary: Vocabulary) -> None:
    vocabulary.special_tokens_map.clear()
    vocabulary.get_vocab().clear()
    assert vocabulary.special_tokens_map and vocabulary.get_vocab()


def test_unknown_tokens(vocabulary: Vocabulary) -> None:
    assert vocabulary.convert_tokens_to_ids("zzz") == vocabulary.unk_token_id
    vocabulary.unk_token = None
    assert vocabulary.convert_tokens_to_ids(["zzz", "[SEP]"]) == [None, vocabulary.sep_token_id]


@for_each(
    ("given", "ids"),
    [
        (7, [7]),
        ([1, 2], [1, 2]),
        ((1, 2), [1, 2]),
        (torch.tensor([1, 2]), [1, 2]),
        (torch.tensor(3), [3]),
        ([torch.tensor(1), torch.tensor(2)], [1, 2]),
        ([], []),
    ],
)
def test_rows_of_ids(given: object, ids: list[int]) -> None:
    assert as_ids(given) == ids


@for_each("given", [-1, [2**32], "12", b"1", None, [0.5], {1: 2}, [[1], [2]]])
def test_as_ids_refuses_invalid_token_ids(given: object) -> None:
    with pytest.raises(InvalidRequestError, match="`token_ids`"):
        as_ids(given)
