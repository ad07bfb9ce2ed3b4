"""Embeddings, positions, types, a cache to go on behind, or none: as transformers, at random.

What the installed transformers lacks (groups, constraints, contrastive search, layers that are
contrasted) and what it answers wrongly or not at all is held against plain ids here.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from tests.generation.alike import same_layers
from tests.parity import test_seq2seq
from tests.parity.test_generate import ARCHITECTURES, _left_padded, _models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:Passing `.* without `input_ids`")

INSIDE = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_hidden_states": True,
    "output_attentions": True,
}

STRATEGIES: list[dict[str, Any]] = [
    {},
    {"do_sample": True},
    {"do_sample": True, "num_return_sequences": 2, "top_k": 9},
    {"num_beams": 3},
    {"num_beams": 3, "num_return_sequences": 2, "do_sample": True},
]

PROCESSORS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.6},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 4},
]


def pair(seed: int, folder: Path, model_type: str | None = None) -> tuple[Any, Any, random.Random]:
    """The same model twice, the theirs with open attention, and numbers for a scene."""
    choice = random.Random(f"inputs {seed}")
    theirs, ours = _models(model_type or ARCHITECTURES[seed % 5], seed, folder)
    theirs.set_attn_implementation("eager")
    return theirs, ours, choice


def common(choice: random.Random, vocab: int) -> dict[str, Any]:
    """A strategy with processors; ends of sequence come in mid-batch."""
    call = choice.choice(STRATEGIES) | choice.choice(PROCESSORS)
    call |= {"max_new_tokens": choice.randint(4, 9), "pad_token_id": 0}
    if choice.random() < 0.5:
        call["eos_token_id"] = choice.sample(range(vocab), vocab // 10)
    return call


def both(theirs: Any, ours: Any, run: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return both outputs of the same seed, after their ids were found equal."""
    found = []
    for model in (theirs, ours):
        torch.manual_seed(0)
        found.append(run(model))
    expected, got = found
    assert got.sequences.tolist() == expected.sequences.tolist()
    return expected, got


def same_insides(expected: Any, got: Any, mask: torch.Tensor) -> None:
    """Check scores, logits, hidden states and attentions of every step, but for padding."""
    same_layers(got.logits, expected.logits)
    same_layers(got.scores, expected.scores)
    for name in ("hidden_states", "attentions"):
        steps = zip(getattr(got, name), getattr(expected, name), strict=True)
        for layers, others in steps:
            for layer, other in zip(layers, others, strict=True):
                assert layer.shape == other.shape
                rows = [each if name == "hidden_states" else each.transpose(1, 2)
                        for each in (layer, other)]  # fmt: skip
                real = mask.repeat_interleave(len(layer) // len(mask), dim=0)
                real = torch.nn.functional.pad(real, (0, 64), value=1)[:, : rows[0].shape[1]]
                if rows[0].shape[1] > 1:
                    rows = [each[real.bool()] for each in rows]
                same_layers((rows[0],), (rows[1],))


def embedded(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Rows of the table, by the model that transformers has."""
    found: torch.Tensor = model.get_input_embeddings()(ids).detach()
    return found


def check_inputs(seed: int, folder: Path) -> None:
    """One random scene of a prompt that is more than ids."""
    theirs, ours, choice = pair(seed, folder)
    prompt = _left_padded(choice, 60)
    ids, mask = prompt["input_ids"], prompt["attention_mask"]
    call = common(choice, 60)
    if choice.random() < 0.7:
        call["attention_mask"] = mask
    else:
        mask = torch.ones_like(mask)
        ids = ids.masked_fill(ids == 0, 5)
    source = choice.choice(["embeddings", "both", "neither"])
    if source != "neither":
        call["inputs_embeds"] = embedded(theirs, ids) + 0.01
    if source == "embeddings" and choice.random() < 0.3:
        del call["max_new_tokens"]
        call["max_length"] = ids.shape[1] + choice.randint(4, 9)
        if "min_new_tokens" in call:
            call["min_length"] = ids.shape[1] + call.pop("min_new_tokens")
    if source != "embeddings":
        call["input_ids"] = ids
    if choice.random() < 0.5:
        call["position_ids"] = torch.randint(0, 30, ids.shape)
    if ours.core.family.has_token_types and choice.random() < 0.7:
        call["token_type_ids"] = torch.randint(0, 60, ids.shape)
    if choice.random() < 0.3:
        call["cache_implementation"] = "static"
    expected, got = both(theirs, ours, lambda model: model.generate(**call, **INSIDE))
    if "cache_implementation" not in call:  # whose attentions are as wide as the buffer there
        same_insides(expected, got, mask)
    assert got.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()


@pytest.mark.parametrize("seed", range(15))
def test_a_prompt_that_is_more_than_ids(seed: int, tmp_path: Path) -> None:
    check_inputs(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(15, 215))
def test_prompts_that_are_more_than_ids(seed: int, tmp_path: Path) -> None:
    check_inputs(seed, tmp_path)


def check_going_on(seed: int, folder: Path) -> None:
    """Two turns on one cache; the second gives the new tokens alone, and the mask of all."""
    theirs, ours, choice = pair(seed, folder)
    prompt = _left_padded(choice, 60)
    call = common(choice, 60)
    rows = max(call.get("num_beams", 1), call.get("num_return_sequences", 1))
    first: dict[str, Any] = {
        name: call[name] for name in ("num_beams", "do_sample") if name in call
    }
    if rows > 1 and "num_beams" not in call:
        first["num_return_sequences"] = rows
    made = choice.choice([{}, {}, {"cache_implementation": "static", "max_cache_len": 60}])
    said = torch.randint(4, 60, (len(prompt["input_ids"]), choice.randint(1, 4)))
    again = torch.randint(4, 60, (len(said), 2))
    has_inside = not made

    def run(model: Any) -> Any:
        options = {"max_new_tokens": 4, "pad_token_id": 0, "return_dict_in_generate": True}
        past = model.generate(**prompt, **options, **first, **made).past_key_values
        found = None
        for ids in (said, again):
            length = past.get_seq_length() + ids.shape[1]
            mask = torch.nn.functional.pad(
                prompt["attention_mask"], (0, length - prompt["attention_mask"].shape[1]), value=1
            )
            inside = INSIDE if has_inside else {"return_dict_in_generate": True}
            found = model.generate(ids, attention_mask=mask, past_key_values=past, **call, **inside)
        return found

    expected, got = both(theirs, ours, run)
    assert got.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()
    if has_inside:
        same_insides(expected, got, torch.ones(len(said), 2))


@pytest.mark.parametrize("seed", range(10))
def test_new_tokens_continue_from_a_cache(seed: int, tmp_path: Path) -> None:
    check_going_on(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 160))
def test_new_tokens_continue_from_caches(seed: int, tmp_path: Path) -> None:
    check_going_on(seed, tmp_path)


def check_without_cache(seed: int, folder: Path) -> None:
    theirs, ours, choice = pair(seed, folder)
    prompt = _left_padded(choice, 60)
    call = common(choice, 60) | prompt | {"use_cache": False}
    expected, got = both(theirs, ours, lambda model: model.generate(**call, **INSIDE))
    assert got.past_key_values is None and expected.past_key_values is None
    same_insides(expected, got, prompt["attention_mask"])
    width = prompt["input_ids"].shape[1]
    for step, layers in enumerate(got.attentions):
        assert all(layer.shape[2:] == (width + step, width + step) for layer in layers)


@pytest.mark.parametrize("seed", range(8))
def test_results_without_cache_equal_the_reference(seed: int, tmp_path: Path) -> None:
    check_without_cache(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8, 108))
def test_results_without_cache_equal_the_reference_for_many_seeds(
    seed: int, tmp_path: Path
) -> None:
    check_without_cache(seed, tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_a_model_with_two_stacks(seed: int, tmp_path: Path) -> None:
    theirs, ours = test_seq2seq.models(seed, tmp_path)
    prompt, choice = test_seq2seq.inputs(seed), random.Random(seed)
    call = choice.choice(STRATEGIES) | {"max_new_tokens": 6, "use_cache": seed % 2 == 0}
    ids = prompt.pop("input_ids")
    embeddings = embedded(theirs, ids) * 1.1
    expected, got = both(
        theirs,
        ours,
        lambda model: model.generate(inputs_embeds=embeddings, **prompt, **call, **INSIDE),
    )
    same_layers(got.scores, expected.scores)
    for name in ("decoder_attentions", "cross_attentions", "decoder_hidden_states"):
        for layers, others in zip(getattr(got, name), getattr(expected, name), strict=True):
            same_layers(layers, others)
    same_layers(got.encoder_hidden_states, expected.encoder_hidden_states)
    assert (got.past_key_values is None) == (not call["use_cache"])


OTHERS: dict[str, dict[str, Any]] = {
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.4},
    "constrained": {"num_beams": 3, "force_words_ids": [[7, 9]]},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "one by one": {"penalty_alpha": 0.6, "top_k": 3, "low_memory": True},
    "contrasted layers": {"dola_layers": [0]},
    "looked up": {"prompt_lookup_num_tokens": 2},
    "early exit": {"assistant_early_exit": 1},
    "assisted": {"assistant_model": None},
    "in chunks": {"prefill_chunk_size": 2},
    "offloaded": {"cache_implementation": "offloaded"},
    "in chunks and beams": {"prefill_chunk_size": 2, "num_beams": 2},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_strategies_that_transformers_lacks(name: str, model_type: str, tmp_path: Path) -> None:
    _, ours, _ = pair(3, tmp_path, model_type)
    call = {"max_new_tokens": 7, "min_new_tokens": 7, "pad_token_id": 0} | OTHERS[name]
    if "assistant_model" in call:
        call["assistant_model"] = ours
    ids, mask = torch.tensor([[0, 0, 5, 9, 11], [4, 8, 7, 6, 5]]), torch.ones(2, 5)
    mask[0, :2] = 0
    if name in ("looked up", "early exit", "assisted"):
        ids, mask = ids[:1], mask[:1]
    expected = ours.generate(ids, attention_mask=mask, **call).tolist()
    new = [row[5:] for row in expected]
    with torch.no_grad():
        embeddings = ours.core.embed(ids)
    assert ours.generate(inputs_embeds=embeddings, attention_mask=mask, **call).tolist() == new
    told = ours.generate(ids, inputs_embeds=embeddings, attention_mask=mask, **call)
    assert told.tolist() == expected
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0).long()
    placed = ours.generate(ids, attention_mask=mask, position_ids=positions, **call)
    assert placed.tolist() == expected
    if "penalty_alpha" not in call:  # which needs the hidden states of the whole prompt
        cache = DynamicCache()
        ours(ids[:, :3], attention_mask=mask[:, :3], past_key_values=cache)
        call.pop("cache_implementation", None)
        behind = ours.generate(ids[:, 3:], attention_mask=mask, past_key_values=cache, **call)
        assert [row[2:] for row in behind.tolist()] == new
    if name in ("groups", "constrained", "contrasted layers"):
        again = ours.generate(ids, attention_mask=mask, use_cache=False, **call)
        assert again.tolist() == expected
