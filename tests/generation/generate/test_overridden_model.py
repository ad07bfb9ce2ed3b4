"""``prepare_inputs_for_generation`` and ``forward`` of a subclass have their say in every step."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.generate.overridden_model import is_overridden
from tests.cases import for_each
from tests.parity import test_seq2seq
from tests.parity.test_generate import _models
from tests.parity.test_inputs import INSIDE, both, embedded, same_insides

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.tensor([[0, 0, 5, 9, 11], [4, 8, 7, 6, 5]])
WHOLE = torch.tensor([[5, 9, 11], [4, 8, 7]])
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
NEW = {"max_new_tokens": 6, "min_new_tokens": 6, "pad_token_id": 0}

Seen = list[dict[str, Any]]


def shown(value: Any) -> Any:
    """Return the comparable part of an argument: a shape, a plain value, or that it is there."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return value if isinstance(value, int | str) else "there"


def hooked(model: Any, seen: Seen) -> Any:
    """The model with a hook that writes down its results and moves positions and masks."""

    class Hooked(type(model)):  # type: ignore[misc]
        def prepare_inputs_for_generation(
            self,
            input_ids: Any,
            past_key_values: Any = None,
            inputs_embeds: Any = None,
            **kwargs: Any,
        ) -> dict[str, Any]:
            found: dict[str, Any] = super().prepare_inputs_for_generation(
                input_ids, past_key_values=past_key_values, inputs_embeds=inputs_embeds, **kwargs
            )
            known = {name: shown(value) for name, value in found.items() if value is not None}
            seen.append({"all": tuple(input_ids.shape), **known})
            if found.get("position_ids") is not None:
                found["position_ids"] = found["position_ids"] * 2
            return found

    model.__class__ = Hooked
    return model


CALLS: list[dict[str, Any]] = [
    {"attention_mask": MASK},
    {"attention_mask": MASK, "do_sample": True, "num_return_sequences": 2},
    {"attention_mask": MASK, "use_cache": False},
    {"attention_mask": MASK, "num_beams": 3, "num_return_sequences": 2},
    {"num_beams": 2, "use_cache": False},
    {"attention_mask": MASK, "num_beams": 2, "do_sample": True, "repetition_penalty": 1.4},
    {"position_ids": torch.randint(0, 20, (2, 5))},
    {"position_ids": torch.randint(0, 20, (2, 5)), "num_beams": 2},
    {"logits_to_keep": 3},
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: Any) -> tuple[Any, Any, Seen, Seen]:
    theirs, ours = _models("gpt2", 4, tmp_path_factory.mktemp("hook"))
    theirs.set_attn_implementation("eager")
    one: Seen = []
    other: Seen = []
    return hooked(theirs, one), hooked(ours, other), one, other


@for_each("number", range(len(CALLS)))
def test_every_step_asks_the_hook(pair: Any, number: int) -> None:
    theirs, ours, expected_seen, seen = pair
    call = NEW | CALLS[number]
    expected_seen.clear()
    seen.clear()
    expected, got = both(theirs, ours, lambda model: model.generate(IDS, **call, **INSIDE))
    if "num_beams" not in call:
        same_insides(expected, got, call.get("attention_mask", torch.ones_like(IDS)))
    assert len(seen) == 6
    for one, other in zip(seen, expected_seen, strict=True):
        other = {name: one.get(name) if name.startswith("output_") else value
                 for name, value in other.items()}  # fmt: skip
        assert {name: one[name] for name in other if one.get(name) is not None} == {
            name: value for name, value in other.items() if value is not None
        }
    cache = got.past_key_values
    assert (cache is None) == (call.get("use_cache") is False)
    assert cache is None or cache.get_seq_length() == expected.past_key_values.get_seq_length()


def test_hook_gets_embeddings_types_and_cache_length(pair: Any) -> None:
    theirs, ours, _, seen = pair
    call: dict[str, Any] = NEW | {"attention_mask": MASK, "inputs_embeds": embedded(theirs, IDS)}
    if ours.core.family.has_token_types:
        call["token_type_ids"] = torch.randint(0, 60, (2, 5))
    both(theirs, ours, lambda model: model.generate(**call, **INSIDE))

    def go_on(model: Any) -> Any:
        past = model.generate(IDS, attention_mask=MASK, **NEW, **INSIDE).past_key_values
        mask = torch.nn.functional.pad(MASK, (0, past.get_seq_length() + 2 - 5), value=1)
        said = torch.tensor([[7, 8], [9, 10]])
        return model.generate(said, attention_mask=mask, past_key_values=past, **NEW, **INSIDE)

    both(theirs, ours, go_on)
    seen.clear()
    ours.generate(IDS[1:], prefill_chunk_size=2, **NEW)
    assert [step["input_ids"][1] for step in seen] == [2, 2, 1, *[1] * 5]
    lookup = ours.generate(IDS[1:], prompt_lookup_num_tokens=3, **NEW).tolist()
    assert lookup == theirs.generate(IDS[1:], prompt_lookup_num_tokens=3, **NEW).tolist()


@pytest.mark.parametrize("call", [{}, {"num_beams": 3}, {"use_cache": False}])
def test_a_model_with_two_stacks(call: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = test_seq2seq.models(5, tmp_path)
    expected_seen: Seen = []
    seen: Seen = []
    hooked(theirs, expected_seen), hooked(ours, seen)
    prompt = test_seq2seq.inputs(5)
    both(theirs, ours, lambda model: model.generate(**prompt, **NEW, **call, **INSIDE))
    for one, other in zip(seen, expected_seen, strict=True):
        assert {n: v for n, v in one.items() if n[:7] != "output_"} == {
            n: v for n, v in other.items() if n[:7] != "output_"
        }


def test_encoder_decoder_continues_from_a_cache(tmp_path: Path) -> None:
    _, ours = test_seq2seq.models(5, tmp_path)
    prompt, cache = test_seq2seq.inputs(5), DynamicCache()
    ids = ours.generate(**prompt, **NEW)
    expected = ours.generate(**prompt, decoder_input_ids=ids, **NEW)
    asked: Seen = []
    hooked(ours, asked)
    past = EncoderDecoderCache(cache, DynamicCache())
    ours.generate(**prompt, past_key_values=past, **NEW)
    found = ours.generate(**prompt, decoder_input_ids=ids, past_key_values=past, **NEW)
    assert found.tolist() == expected.tolist()
    assert [step["decoder_input_ids"][1] for step in asked] == [1] * 12


def plain(folder: Path) -> Any:
    return _models("llama", 4, folder)[1]


def test_compiled_forward_is_no_override_but_a_hook_is(tmp_path: Path) -> None:
    model = plain(tmp_path)
    assert not is_overridden(model)
    compiled = functools.partial(model.forward)
    compiled._torchdynamo_orig_callable = model.forward  # type: ignore[attr-defined]
    model.forward = compiled  # as `torch.compile(model.forward)` does
    assert not is_overridden(model)
    del model.forward
    handle = model.register_forward_hook(lambda *_: None)
    assert is_overridden(model)
    handle.remove()
    assert not is_overridden(model)
    model.__class__ = type("Mine", (type(model),), {"extra": 1})
    assert not is_overridden(model)


def test_an_override_of_one_object_or_of_forward(tmp_path: Path) -> None:
    model = plain(tmp_path)
    kind, expected = type(model), model.generate(WHOLE, **NEW)

    def cuts(self: Any, input_ids: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        read = past_key_values.get_seq_length()
        return {"input_ids": input_ids[:, read:], "past_key_values": past_key_values}

    model.prepare_inputs_for_generation = types.MethodType(cuts, model)
    assert is_overridden(model)
    assert model.generate(WHOLE, **NEW).tolist() == expected.tolist()
    del model.prepare_inputs_for_generation

    class Seven(kind):  # type: ignore[misc, valid-type]
        def forward(self, input_ids: Any = None, *, favoured: Any = None, **kwargs: Any) -> Any:
            output = super().forward(input_ids, **kwargs)
            output.logits[torch.arange(len(favoured)), -1, favoured] = 1e4
            return output

    model.__class__ = Seven
    found = model.generate(WHOLE, favoured=torch.tensor([7, 9]), num_return_sequences=2,
                           do_sample=True, **NEW)  # fmt: skip
    assert found[:, 3:].tolist() == [[7] * 6] * 2 + [[9] * 6] * 2
    with pytest.raises(ValueError, match="favored"):
        model.generate(WHOLE, favored=torch.tensor([7, 9]), **NEW)


def test_older_hooks_get_the_cache_length(tmp_path: Path) -> None:
    model, places = plain(tmp_path), []

    def older(
        self: Any, input_ids: Any, past_key_values: Any = None, cache_position: Any = None,
        use_cache: Any = None, attention_mask: Any = None, position_ids: Any = None,
        logits_to_keep: Any = None,
    ) -> Any:  # fmt: skip
        places.append(cache_position.tolist())
        return {"input_ids": input_ids[:, cache_position], "past_key_values": past_key_values,
                "cache_position": cache_position}  # fmt: skip

    expected = model.generate(WHOLE, **NEW)
    model.prepare_inputs_for_generation = types.MethodType(older, model)
    assert model.generate(WHOLE, **NEW).tolist() == expected.tolist()
    assert places == [[0, 1, 2], [3], [4], [5], [6], [7]]


def test_a_hook_may_forgo_the_cache(tmp_path: Path) -> None:
    model = plain(tmp_path)
    expected = model.generate(WHOLE, **NEW)

    def forgets(self: Any, input_ids: Any, **kwargs: Any) -> Any:
        return {"input_ids": input_ids, "use_cache": False}

    model.prepare_inputs_for_generation = types.MethodType(forgets, model)
    assert model.generate(WHOLE, **NEW).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("named", "call"),
    [
        ("penalty_alpha", {"penalty_alpha": 0.5, "top_k": 3}),
        ("dola_layers", {"dola_layers": [0]}),
        ("assistant_early_exit", {"assistant_early_exit": 1}),
        ("use_cache", {"use_cache": False, "inputs_embeds": None}),
        ("inputs_embeds", {"inputs_embeds": None}),
    ],
)
def test_calls_that_bypass_a_hook_are_refused(
    named: str, call: dict[str, Any], tmp_path: Path
) -> None:
    model = plain(tmp_path)
    asked: Seen = []
    hooked(model, asked)
    if "inputs_embeds" in call:
        call = call | {"inputs_embeds": model.core.embed(IDS[:1])}
    if named == "inputs_embeds":
        model.prepare_inputs_for_generation = lambda input_ids, **kwargs: kwargs
    with pytest.raises(InvalidRequestError, match=f"`{named}` is"):
        model.generate(IDS[:1], past_key_values=None if "use_cache" in call else DynamicCache(),
                       **NEW, **call)  # fmt: skip
    assert asked == []
