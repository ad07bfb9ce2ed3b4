"""Numbers of numpy and torch are as good as Python's, and strings of digits are none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from asyncgen import AsyncLLM
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.generation_config import plain_values
from asyncgen.generation.config.parameters import FIELDS
from asyncgen.generation.watermarking.greenlist import WatermarkingConfig
from asyncgen.runtime.exact_values import plain
from tests.cases import for_each
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

GIVEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"do_sample": np.bool_(True), "temperature": np.float32(0.5), "top_k": np.int64(3)},
        {"do_sample": True, "temperature": 0.5, "top_k": 3},
    ),
    (
        {"do_sample": True, "top_p": torch.tensor(0.5), "min_p": np.array(0.25)},
        {"do_sample": True, "top_p": 0.5, "min_p": 0.25},
    ),
    ({"eos_token_id": np.int64(2)}, {"eos_token_id": 2}),
    ({"eos_token_id": torch.tensor([2, 3])}, {"eos_token_id": [2, 3]}),
    ({"eos_token_id": (2, np.int32(3))}, {"eos_token_id": [2, 3]}),
    ({"suppress_tokens": np.array([4, 5])}, {"suppress_tokens": [4, 5]}),
    ({"begin_suppress_tokens": (4, 5)}, {"begin_suppress_tokens": [4, 5]}),
    ({"bad_words_ids": ((4, 5), np.array([6]))}, {"bad_words_ids": [[4, 5], [6]]}),
    (
        {"sequence_bias": {(np.int64(4),): np.float32(-1.5)}},
        {"sequence_bias": {(4,): -1.5}},
    ),
    ({"sequence_bias": (((4, 5), torch.tensor(2.0)),)}, {"sequence_bias": [[[4, 5], 2.0]]}),
    (
        {"exponential_decay_length_penalty": (np.int64(2), np.float64(1.5))},
        {"exponential_decay_length_penalty": (2, 1.5)},
    ),
    (
        {"watermarking_config": {"hashing_key": np.int64(7), "bias": np.float32(0.5)}},
        {"watermarking_config": {"hashing_key": 7, "bias": 0.5}},
    ),
    ({"repetition_penalty": torch.tensor(1.5)}, {"repetition_penalty": 1.5}),
    ({"num_beams": np.int8(2), "length_penalty": np.float16(0.5)}, {"num_beams": 2,
      "length_penalty": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "same"), GIVEN, ids=lambda given: next(iter(given)))
def test_a_configuration_keeps_plain_values(
    given: dict[str, Any], same: dict[str, Any], tmp_path: Path
) -> None:
    config = GenerationConfig(**given)
    changed = GenerationConfig()
    for name, value in given.items():
        setattr(changed, name, value)
    updated = GenerationConfig()
    updated.update(**given)
    expected = GenerationConfig(**same)
    # A dict of a watermark becomes an object when a configuration is built.
    for each in (config,) if "watermarking_config" in given else (config, updated):
        assert each == expected and each.to_dict() == expected.to_dict()
    assert {name: getattr(changed, name) for name in same} == same
    config.save_pretrained(tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path) == expected
    json.dumps(plain_values({**given, "sequence_bias": None}))


@for_each(("given", "same"), GIVEN, ids=lambda given: next(iter(given)))
def test_generate_and_streams_accept_numpy_values(
    given: dict[str, Any], same: dict[str, Any]
) -> None:
    ids = torch.tensor([[1, 2, 3]])
    outputs: list[Any] = []
    for params, length in ((given, np.int64(4)), (same, 4)):
        torch.manual_seed(0)
        outputs.append(TableModel().generate(ids, max_new_tokens=length, pad_token_id=0, **params))
    assert torch.equal(*outputs)


@pytest.mark.anyio
async def test_a_stream_takes_them() -> None:
    async with AsyncLLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        for given, same in GIVEN:
            own: Any = {**given, "seed": np.uint64(5), "max_new_tokens": np.int64(4)}
            one = await llm.generate([1, 2], **own)
            other = await llm.generate([1, 2], seed=5, max_new_tokens=4, **same)
            assert one.token_ids == other.token_ids
            assert all(type(token_id) is int for token_id in one.token_ids)
        numbers: Any = {
            "n": np.int64(2),
            "logprobs": np.bool_(True),
            "top_logprobs": torch.tensor(1),
            "presence_penalty": np.float32(0.5),
        }
        samples = await llm.generate([1, 2], max_new_tokens=2, do_sample=True, **numbers)
        assert len(samples.samples) == 2


_NUMBERS = [each.name for each in FIELDS if each.type in ("int", "float") and each.awaits is None]
_IDS = ["eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids"]


@pytest.mark.anyio
async def test_strings_of_digits_are_refused_on_a_stream() -> None:
    async with AsyncLLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        for name in (*_NUMBERS, *_IDS):
            for value in ("1", np.array(["1"])):
                given: Any = {name: value}
                with pytest.raises(ValueError, match=name):
                    await llm.generate([1, 2], **given)


@for_each("name", [*_NUMBERS, *_IDS])
def test_strings_of_digits_are_refused_by_generate(name: str) -> None:
    given: Any = {name: "1"}
    with pytest.raises((ValueError, TypeError), match=name):
        TableModel().generate(torch.tensor([[1, 2]]), **given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("top_k", {"penalty_alpha": 0.6, "top_k": "4"}),
        ("penalty_alpha", {"penalty_alpha": "0.6", "top_k": 4}),
        ("num_beam_groups", {"num_beams": 2, "num_beam_groups": "2"}),
    ],
)
def test_strings_that_decide_on_a_strategy_are_named(name: str, given: dict[str, Any]) -> None:
    for call in (GenerationConfig, lambda **given: GenerationConfig().update(**given)):
        with pytest.raises(InvalidRequestError, match="strings of digits") as caught:
            call(**given)
        assert caught.value.parameter == name
    with pytest.raises(InvalidRequestError, match=f"`{name}` is '"):
        TableModel().generate(torch.tensor([[1, 2]]), max_new_tokens=2, **given)


def test_objects_stay_what_they_are() -> None:
    watermark = WatermarkingConfig(hashing_key=np.int64(9))  # type: ignore[arg-type]
    assert watermark.to_dict()["hashing_key"] == 9 and type(watermark.hashing_key) is int
    words = [1, 2]
    deep: list[Any] = [words]
    deep.append(deep)
    ours = plain_values({"watermarking_config": watermark, "streamer": deep})
    assert ours["watermarking_config"] is watermark and ours["streamer"] is deep
    assert plain(deep)[0] == words
    assert plain("12") == "12" and plain({1.5, np.int64(2)}) == {1.5, 2}
