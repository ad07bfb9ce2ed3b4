"""Odd input of ``model.generate``: the tokens that transformers gives, or an error by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen import AsyncLLM
from asyncgen.errors import ContextLengthError, InvalidRequestError, InvalidScoresError
from asyncgen.reference.load_model import load_model
from tests.cases import for_each
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.models import byte_tokenizer
from tests.doubles.strategies import tiny_model

if TYPE_CHECKING:
    from torch import Tensor

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[40, 80, 19, 63, 7], [33, 12, 44, 88, 58]])
RIGHT, LEFT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]), torch.ones(2, 5, dtype=torch.int64)
LEFT[1, :2] = 0
BLANK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
INF = float("inf")


class Demands:
    """Gives some tokens +inf."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        scores[:, self.tokens] = INF
        return scores


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("edges")
    save_checkpoint(folder, num_hidden_layers=3)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return theirs.eval(), load_model(folder)


def both(pair: tuple[Any, Any], ids: Tensor, **given: Any) -> list[list[int]]:
    """Return our output after it was found equal to that of transformers."""
    found: list[list[list[int]]] = []
    for model in pair:
        kwargs = {"max_new_tokens": 6, "do_sample": False, **given}
        found.append(model.generate(ids, **kwargs).tolist())
    assert found[0] == found[1]
    return found[1]


@for_each(
    ("mask", "beams"),
    [(RIGHT, 1), (LEFT, 1), (BLANK, 1), (LEFT.bool(), 1), (RIGHT.float(), 1), (BLANK, 2)],
)
def test_padding_on_either_side_and_rows_of_it_alone(
    pair: tuple[Any, Any], mask: Tensor, beams: int
) -> None:
    ids = IDS.masked_fill(mask == 0, 0)
    stated = both(pair, ids, attention_mask=mask, pad_token_id=0, num_beams=beams)
    assert stated == both(pair, ids, pad_token_id=0, num_beams=beams)  # inferred


def test_right_padding_is_logged(pair: tuple[Any, Any], caplog: pytest.LogCaptureFixture) -> None:
    """It is continued like any token, as in transformers, so the text is not the row's own."""
    pair[1].generate(IDS, attention_mask=LEFT, max_new_tokens=1)
    assert "pad on the left" not in caplog.text
    pair[1].generate(IDS, attention_mask=RIGHT, max_new_tokens=1)
    assert "pad on the left" in caplog.text


def test_explicit_none_is_none_whatever_the_model_has(pair: tuple[Any, Any]) -> None:
    for model in pair:
        own = model.generation_config
        own.pad_token_id, own.eos_token_id, own.repetition_penalty = 0, 48, 1.7
    try:
        filled = both(pair, IDS)[0][-1]
        assert filled == 0
        assert both(pair, IDS, pad_token_id=None, repetition_penalty=None)[0][-1] == 48
        assert 0 not in both(pair, IDS, pad_token_id=None, eos_token_id=None)[0]
    finally:
        for model in pair:
            own = model.generation_config
            own.pad_token_id, own.eos_token_id, own.repetition_penalty = None, 2, None


@pytest.mark.parametrize("options", [{}, {"prompt_lookup_num_tokens": 2}])
@pytest.mark.parametrize("tokens", [(7,), (11, 7)])
def test_a_token_of_plus_infinity_is_taken(
    pair: tuple[Any, Any], tokens: tuple[int, ...], options: dict[str, Any]
) -> None:
    ids = IDS[:1] if options else IDS
    for row in both(pair, ids, logits_processor=[Demands(*tokens)], **options):
        assert row[5:] == [7] * 6


@pytest.mark.parametrize("options", [{"do_sample": True}, {"num_beams": 3}])
def test_plus_infinity_where_transformers_cannot(
    pair: tuple[Any, Any], options: dict[str, Any]
) -> None:
    ids = pair[1].generate(IDS, max_new_tokens=4, logits_processor=[Demands(7)], **options)
    assert (ids[:, 5:] == 7).all()


@pytest.mark.anyio
@for_each(
    "options",
    [{"do_sample": False}, {"do_sample": True, "seed": 3}, {"num_beams": 2, "do_sample": False}],
)
async def test_plus_infinity_in_a_shared_batch(options: dict[str, Any]) -> None:
    """In the shared batch, and beside it."""
    async with AsyncLLM(tiny_model(), tokenizer=byte_tokenizer()) as llm:
        done = await llm.generate(
            list(b"abcab"), max_new_tokens=4, logits_processor=[Demands(97)], **options
        )
        assert list(done.token_ids) == [97] * 4
        with pytest.raises(InvalidScoresError, match="NaN"):
            await llm.generate(
                list(b"abcab"), logits_processor=[lambda ids, scores: scores * torch.nan], **options
            )


@for_each(
    ("given", "named"),
    [
        ({"attention_mask": torch.ones(5)}, r"`attention_mask` is \(5,\): .* \[2, 5\]"),
        ({"attention_mask": torch.ones(2, 4)}, r"`attention_mask` is \(2, 4\)"),
        ({"attention_mask": torch.ones(2, 6)}, r"`attention_mask` is \(2, 6\)"),
        ({"attention_mask": torch.ones(1, 5)}, r"`attention_mask` is \(1, 5\)"),
        ({"attention_mask": torch.ones(3, 5)}, r"`attention_mask` is \(3, 5\)"),
        ({"attention_mask": torch.ones(2, 1, 5, 5)}, r"`attention_mask` is \(2, 1, 5, 5\)"),
        ({"attention_mask": [[1] * 5] * 2}, "`attention_mask` is 'list': give a tensor"),
        ({"inputs": IDS[:0]}, r"`input_ids` is \(0, 5\).*at least one row"),
        ({"inputs": IDS[:, :0]}, r"`input_ids` is \(2, 0\).*at least one row and one position"),
        ({"inputs": IDS[0]}, r"`input_ids` is \(5,\)"),
        ({"inputs": IDS.tolist()}, "`input_ids` is 'list': give a tensor"),
        ({"inputs": IDS + 90}, r"`input_ids` is \[97, 178\]: ids outside of 0 to 95"),
        ({"pad_token_id": 96}, "`pad_token_id` is 96: .* from 0 to 95"),
        ({"pad_token_id": -1}, "`pad_token_id` is -1"),
    ],
)
def test_impossible_arguments_are_refused_by_name(
    pair: tuple[Any, Any], given: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named) as caught:
        pair[1].generate(**{"inputs": IDS, "max_new_tokens": 2, **given})
    assert not isinstance(caught.value, ContextLengthError)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"attention_mask": torch.ones(2, 4)}, r"`attention_mask` is \(2, 4\)"),
        ({"decoder_attention_mask": torch.ones(2, 3)}, r"`decoder_attention_mask` is \(2, 3\)"),
        (
            {"decoder_input_ids": IDS[:, :2], "decoder_attention_mask": torch.ones(2, 3)},
            r"`decoder_attention_mask` is \(2, 3\): its shape must be \[2, 2\]",
        ),
        ({"inputs": IDS[:0]}, "`input_ids` is"),
    ],
)
def test_masks_of_two_stacks(tmp_path: Any, given: dict[str, Any], named: str) -> None:
    shape: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    tied: dict[str, Any] = {"tie_word_embeddings": True, "decoder_start_token_id": 0}
    save_checkpoint(tmp_path, model_type="t5", **tied, **shape)
    model: Any = load_model(tmp_path)
    with pytest.raises(InvalidRequestError, match=named):
        model.generate(**{"inputs": IDS, "max_new_tokens": 2, **given})
