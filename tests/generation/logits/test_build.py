"""From configuration to processors: order, neutral values and refusals, as in transformers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.logits.base import Guidance, LogitsProcessor, LogitsProcessorList
from asyncgen.generation.logits.build import build_logits_processors
from asyncgen.generation.logits.filters import TemperatureLogitsWarper
from asyncgen.generation.logits.penalties import RepetitionPenaltyLogitsProcessor
from tests.cases import for_each

ON: dict[str, list[Any]] = {
    "guidance_scale": [1.0, 1.5],
    "sequence_bias": [[[[1, 2], 0.5]], {(4,): -1.0}],
    "encoder_repetition_penalty": [1.0, 1.4, 0.7],
    "repetition_penalty": [1.0, 1.3],
    "no_repeat_ngram_size": [0, 2],
    "encoder_no_repeat_ngram_size": [0, 1, 2],
    "bad_words_ids": [[[5], [6, 7]]],
    "min_length": [0, 9],
    "min_new_tokens": [0, 5],
    "forced_bos_token_id": [0, 3],
    "forced_eos_token_id": [0, [2, 3]],
    "remove_invalid_values": [True, False],
    "exponential_decay_length_penalty": [(3, 1.1)],
    "suppress_tokens": [[4], []],
    "begin_suppress_tokens": [[6]],
    "temperature": [1.0, 0.5],
    "top_h": [0.4],
    "top_k": [0, 5, 50],
    "top_p": [1.0, 0.9],
    "min_p": [0.0, 0.1],
    "typical_p": [1.0, 0.5],
    "epsilon_cutoff": [0.0, 0.01],
    "eta_cutoff": [0.0, 0.01],
    "watermarking_config": [{"bias": 1.5}, {"seeding_scheme": "selfhash", "context_width": 2}],
    "renormalize_logits": [True, False],
}


PROMPT = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 1, 2, 4, 3], [7, 7, 1, 2, 5, 5, 3, 4, 2, 6, 1]])


class Nothing(LogitsProcessor):
    """Changes nothing."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


class Alike(transformers.LogitsProcessor):  # type: ignore[misc]
    """The same for transformers."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


Alike.__name__ = "Nothing"


@pytest.fixture(scope="module")
def model() -> Any:
    """A model of transformers, only for the list that it builds."""
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        initializer_range=0.5,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config)


def theirs(model: Any, values: dict[str, Any], eos: Tensor | None, prompt: int) -> Any:
    config = transformers.GenerationConfig(**values)
    config._eos_token_tensor = eos
    return model._get_logits_processor(
        config,
        input_ids_seq_length=prompt,
        encoder_input_ids=PROMPT[:, :prompt],
        model_kwargs={},
        logits_processor=transformers.LogitsProcessorList([Alike()]),
        device="cpu",
    )


def ours(
    model: Any, values: dict[str, Any], eos: Tensor | None, prompt: int
) -> LogitsProcessorList:
    return build_logits_processors(
        GenerationConfig(**values),
        prompt_length=prompt,
        eos_token_ids=eos,
        device="cpu",
        user_processors=LogitsProcessorList([Nothing()]),
        encoder_input_ids=PROMPT[:, :prompt],
        vocab_size=40,
        guidance=Guidance(model),
    )


def complete(values: dict[str, Any]) -> dict[str, Any]:
    """Put the defaults in, as `generate` does first."""
    return GenerationConfig._get_default_generation_params() | {"max_length": 12} | values


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore")
def test_same_list_and_same_scores_for_random_combinations(model: Any) -> None:
    chooser = random.Random(0)
    for round_number in range(150):
        names = chooser.sample(list(ON), chooser.randint(0, 10))
        values = complete({name: chooser.choice(ON[name]) for name in names})
        values["do_sample"] = chooser.random() < 0.7
        eos = chooser.choice([None, torch.tensor([2]), torch.tensor([2, 9, 11])])
        if eos is None:
            values["exponential_decay_length_penalty"] = None
        prompt = chooser.choice([1, 3, 11])
        expected, built = theirs(model, values, eos, prompt), ours(model, values, eos, prompt)
        assert [type(each).__name__ for each in built] == [
            type(each).__name__ for each in expected
        ], values
        torch.manual_seed(round_number)
        for length in (prompt, prompt + 1, 11):
            ids, scores = torch.randint(0, 8, (2, length)), torch.randn(2, 40) * 4
            kept = scores.clone()
            actual, wanted = built(ids, scores), expected(ids, scores.clone())
            assert torch.equal(scores, kept)
            assert torch.equal(actual.isneginf(), wanted.isneginf()), values
            assert torch.allclose(actual, wanted, atol=1e-5, equal_nan=True), values


def test_beams_keep_more_tokens(model: Any) -> None:
    values = complete({"do_sample": True, "top_p": 0.5, "min_p": 0.1})
    for eos in (None, torch.tensor([2, 9, 11])):
        expected = theirs(model, values | {"num_beams": 3}, eos, 3)
        config = GenerationConfig(**values)
        config.num_beams = 3
        built = build_logits_processors(config, prompt_length=3, eos_token_ids=eos, device="cpu")
        ids, scores = torch.randint(0, 8, (3, 5)), torch.randn(3, 40) * 4
        assert torch.equal(built(ids, scores).isneginf(), expected(ids, scores).isneginf())
        assert {each.min_tokens_to_keep for each in expected[2:]} == {2 if eos is None else 4}


def test_a_processor_twice_is_refused() -> None:
    user = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.1)])
    with pytest.raises(ValueError, match="already makes such a processor"):
        build_logits_processors(
            GenerationConfig(repetition_penalty=1.2),
            prompt_length=3,
            eos_token_ids=None,
            device="cpu",
            user_processors=user,
        )


def test_filters_of_the_user_compose_with_those_of_the_configuration() -> None:
    built = build_logits_processors(
        GenerationConfig(do_sample=True, temperature=0.5),
        prompt_length=3,
        eos_token_ids=None,
        device="cpu",
        user_processors=LogitsProcessorList([TemperatureLogitsWarper(0.5)]),
    )
    assert built(torch.zeros(1, 1), torch.ones(1, 3)).tolist() == [[4.0] * 3]


@for_each(
    ("values", "name"),
    [
        ({"guidance_scale": 1.5}, "guidance_scale"),
        ({"watermarking_config": {"bias": 1.0}}, "watermarking_config"),
        ({"encoder_repetition_penalty": 1.2}, "encoder_repetition_penalty"),
        ({"encoder_no_repeat_ngram_size": 2}, "encoder_no_repeat_ngram_size"),
        ({"forced_eos_token_id": 2}, "forced_eos_token_id"),
        ({"exponential_decay_length_penalty": (1, 1.1)}, "exponential_decay_length_penalty"),
        ({"do_sample": True, "temperature": 0.0}, "temperature"),
        ({"do_sample": True, "temperature": "x"}, "temperature"),
        ({"do_sample": True, "top_p": "x"}, "top_p"),
        ({"do_sample": True, "top_k": -1}, "top_k"),
        ({"do_sample": True, "min_p": 1.5}, "min_p"),
        ({"do_sample": True, "typical_p": 0.0}, "typical_p"),
        ({"bad_words_ids": []}, "bad_words_ids"),
        ({"sequence_bias": []}, "sequence_bias"),
        ({"repetition_penalty": -1.0}, "penalty"),
    ],
)
def test_unbuildable_processors_are_refused_by_name(values: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build_logits_processors(
            GenerationConfig(**values), prompt_length=3, eos_token_ids=None, device="cpu"
        )
    assert caught.value.parameter == name


def test_whole_numbers_pass_where_floats_are_meant() -> None:
    built = build_logits_processors(
        GenerationConfig(do_sample=True, temperature=2, repetition_penalty=2, top_k=0),
        prompt_length=1,
        eos_token_ids=None,
        device="cpu",
    )
    scores = built(torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 2), 8.0))
    assert scores.tolist() == [[2.0, 4.0]]
