"""Test that impossible prompts are refused by name, before anything is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from tests.parity import test_seq2seq
from tests.parity.test_generate import _models

if TYPE_CHECKING:
    from collections.abc import Iterator

IDS = torch.tensor([[4, 8, 7, 6, 5], [5, 9, 11, 7, 4]])
NEW = {"max_new_tokens": 4, "min_new_tokens": 4, "pad_token_id": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: Any) -> Iterator[dict[str, Any]]:
    yield {name: _models(name, 4, tmp_path_factory.mktemp(name))[1] for name in ("llama", "gpt2")}


@pytest.fixture
def model(models: dict[str, Any]) -> Any:
    return models["llama"]


def width(model: Any) -> int:
    return int(model.config.hidden_size)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("position_ids", {"position_ids": torch.arange(4)[None]}, r"shape \[2, 5\]"),
    ("position_ids", {"position_ids": torch.arange(5.0)[None]}, "integers"),
    ("position_ids", {"position_ids": [0, 1, 2, 3, 4]}, "integers"),
    ("position_ids", {"position_ids": torch.arange(-1, 4)[None]}, "from 0"),
    ("cache_position", {"cache_position": torch.arange(1, 6)}, "0 to 4"),
    ("logits_to_keep", {"logits_to_keep": -1}, "0 for all"),
    ("logits_to_keep", {"logits_to_keep": torch.tensor([1])}, "0 for all"),
    ("token_type_ids", {"token_type_ids": IDS}, "not used by the model"),
    ("labels", {"labels": IDS}, "not used by the model"),
    ("decoder_inputs_embeds", {"decoder_inputs_embeds": IDS}, "decoder_input_ids"),
    ("inputs_embeds", {"inputs_embeds": IDS}, "tensor of floats"),
    ("inputs_embeds", {"inputs_embeds": [1.0]}, "tensor of floats"),
    ("inputs_embeds", {"inputs_embeds": torch.zeros(2, 5, 3)}, r"\[B, S, "),
    ("attention_mask", {"attention_mask": torch.ones(2, 6)}, r"\[2, 5\]"),
]


@pytest.mark.parametrize(("named", "call", "told"), BAD)
def test_mismatched_inputs_are_refused_by_name(
    named: str, call: dict[str, Any], told: str, model: Any
) -> None:
    with pytest.raises(ValueError, match=rf"{named}.*{told}|{told}.*{named}"):
        model.generate(IDS, **NEW, **call)


def test_positions_and_types_end_with_their_tables(models: dict[str, Any]) -> None:
    model = models["gpt2"]
    for name, most in (("position_ids", 127), ("token_type_ids", model.config.vocab_size - 1)):
        assert model.generate(IDS, **{name: torch.full((2, 5), most - 4)}, **NEW).shape == (2, 9)
        with pytest.raises(InvalidRequestError, match=f"`{name}`.*0 to {most}"):
            model.generate(IDS, **{name: torch.full((2, 5), most + 1)}, **NEW)
    with pytest.raises(InvalidRequestError, match="128 positions"):
        model.generate(IDS, position_ids=torch.full((2, 5), 126), **NEW)
    expected = model.generate(IDS, position_ids=torch.full((2, 5), 123), **NEW)
    assert expected.shape == (2, 9)


def test_embeddings_and_ids_that_do_not_fit(model: Any) -> None:
    embeddings = torch.zeros(2, 5, width(model))
    for ids in (IDS[:1], IDS[:, :3]):
        with pytest.raises(InvalidRequestError, match="`input_ids`.*`inputs_embeds`"):
            model.generate(ids, inputs_embeds=embeddings, **NEW)
    with pytest.raises(ValueError, match="`max_length` is 5, but the prompt has 5"):
        model.generate(inputs_embeds=embeddings, max_length=5)
    with pytest.raises(InvalidRequestError, match=r"guidance_scale.*negative_prompt_ids"):
        model.generate(inputs_embeds=embeddings, guidance_scale=2.0, **NEW)
    with pytest.raises(InvalidRequestError, match="token_healing"):
        model.generate(inputs_embeds=embeddings, token_healing=True, tokenizer=1, **NEW)
    with pytest.raises(InvalidRequestError, match="encoder_repetition_penalty.*ids of the prompt"):
        model.generate(inputs_embeds=embeddings, encoder_repetition_penalty=1.5, **NEW)
    cache = DynamicCache()
    model(IDS, past_key_values=cache)
    with pytest.raises(InvalidRequestError, match="cache of 5 positions.*`inputs_embeds` has 5"):
        model.generate(inputs_embeds=embeddings, past_key_values=cache, **NEW)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_that_does_not_fit(kind: str, model: Any) -> None:
    cache: Any = DynamicCache()
    if kind == "static":
        cache = StaticCache(model.config, max_batch_size=2, max_cache_len=30)
    model(IDS, past_key_values=cache)
    for ids, mask in ((IDS[:, :2], None), (IDS, None), (IDS[:, :2], torch.ones(2, 2))):
        with pytest.raises(
            InvalidRequestError, match="`past_key_values` is a cache of 5 positions"
        ):
            model.generate(ids, attention_mask=mask, past_key_values=cache, **NEW)
    for length in (6, 8):
        mask = torch.ones(2, length)
        with pytest.raises(
            InvalidRequestError, match=r"`attention_mask`.*\[2, 2\].*\[2, 7\].*5 pos"
        ):
            model.generate(IDS[:, :2], attention_mask=mask, past_key_values=cache, **NEW)
    with pytest.raises(InvalidRequestError, match="use_cache"):
        model.generate(IDS[:, :2], past_key_values=cache, use_cache=False, **NEW)
    assert cache.get_seq_length() == 5
    found = model.generate(
        IDS[:, :2], attention_mask=torch.ones(2, 7), past_key_values=cache,
        cache_position=torch.tensor([5, 6]), position_ids=torch.tensor([[5, 6]]), **NEW
    )  # fmt: skip
    whole = model.generate(torch.cat((IDS, IDS[:, :2]), dim=1), **NEW)
    assert found[:, 2:].tolist() == whole[:, 7:].tolist()


WAYS: list[tuple[str, dict[str, Any], bool]] = [
    ("call", {"use_cache": False}, False),
    ("argument", {"generation_config": GenerationConfig(use_cache=False)}, False),
    ("generation_config", {}, False),
    ("config", {}, False),
    ("config", {"use_cache": True}, True),
    ("config", {"generation_config": GenerationConfig(use_cache=True)}, True),
    ("config", {"cache_implementation": "static"}, True),
    ("config", {"past_key_values": DynamicCache()}, True),
    ("config", {"prefill_chunk_size": 2}, True),
    ("config", {"prompt_lookup_num_tokens": 2}, True),
    ("config", {"penalty_alpha": 0.6, "top_k": 3}, True),
]


@pytest.mark.parametrize(("where", "call", "is_cached"), WAYS)
def test_use_cache_false_computes_without_a_cache(
    where: str, call: dict[str, Any], is_cached: bool, model: Any
) -> None:
    if where == "config":
        model.config.use_cache = False
    if where == "generation_config":
        model.generation_config.use_cache = False
    inside = {"return_dict_in_generate": True, "output_hidden_states": True}
    try:
        found = model.generate(IDS[:1], **NEW, **inside, **call)
    finally:
        model.generation_config.use_cache = None
        model.config.use_cache = True
    widths = [layers[-1].shape[1] for layers in found.hidden_states]
    assert (found.past_key_values is not None) == is_cached
    assert widths[-1] == (1 if is_cached else 8)


def test_strategies_that_need_a_cache_refuse_use_cache_false(model: Any) -> None:
    for call in ({"penalty_alpha": 0.6, "top_k": 3}, {"prompt_lookup_num_tokens": 2}):
        with pytest.raises(InvalidRequestError, match="`use_cache` is False"):
            model.generate(IDS[:1], use_cache=False, **NEW, **call)


def test_two_stacks_take_embeddings_for_the_encoder_alone(tmp_path: Any) -> None:
    _, model = test_seq2seq.models(1, tmp_path)
    embeddings = model.core.embed(IDS)
    with pytest.raises(ValueError, match="`inputs_embeds` and `input_ids`"):
        model.generate(IDS, inputs_embeds=embeddings, **NEW)
    with pytest.raises(InvalidRequestError, match="decoder_inputs_embeds"):
        model.generate(IDS, decoder_inputs_embeds=embeddings, **NEW)
    for name in ("position_ids", "cache_position", "token_type_ids", "logits_to_keep"):
        with pytest.raises(ValueError, match=f"not used by the model: .'{name}'"):
            model.generate(IDS, **{name: IDS}, **NEW)
    told = model.generate(inputs_embeds=embeddings[:1], assistant_model=model, **NEW)
    assert told.tolist() == model.generate(IDS[:1], **NEW).tolist()


def test_a_streamer_gets_the_new_tokens(model: Any) -> None:
    puts: list[list[Any]] = []

    class Streamer:
        def put(self, value: torch.Tensor) -> None:
            puts.append(value.tolist())

        def end(self) -> None:
            puts.append(["end"])

    embeddings = model.core.embed(IDS)
    found = model.generate(inputs_embeds=embeddings, streamer=Streamer(), **NEW).tolist()
    assert puts == [[[], []], *map(list, zip(*found, strict=True)), ["end"]]


def test_a_custom_method_gets_what_was_said(models: dict[str, Any]) -> None:
    seen: dict[str, Any] = {}

    def method(model: Any, input_ids: Any, **kwargs: Any) -> Any:
        seen.update(kwargs, input_ids=input_ids)
        return input_ids

    model = models["gpt2"]
    embeddings = model.core.embed(IDS)
    model.generate(
        inputs_embeds=embeddings, position_ids=IDS, token_type_ids=IDS, custom_generate=method,
        use_cache=False, **NEW
    )  # fmt: skip
    assert seen["input_ids"].shape == (2, 0) and seen["attention_mask"].shape == (2, 5)
    assert torch.equal(seen["inputs_embeds"], embeddings)
    assert torch.equal(seen["position_ids"], IDS) and torch.equal(seen["token_type_ids"], IDS)
    assert seen["past_key_values"] is None and seen["use_cache"] is False
