"""Models run with a `SinkCache`: places in the cache are positions, whatever was dropped.

The truth is transformers' own model with a cache that keeps every key as it came and turns it by
the formula of its family's rotation, and what transformers 4.51 did.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.cache.sink import SinkCache
from asyncgen.errors import InvalidRequestError
from tests.cases import for_each
from tests.checkpoints.test_saving import FAMILIES as SAVED
from tests.doubles.checkpoints import save_checkpoint
from tests.families.arch.proofs import make_pair
from tests.families.arch.variants import _yarn
from tests.fixtures import make_sink_models, tiny_llama

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from tests.families.arch.proofs import Pair

WINDOW, SINKS = 8, 2
SIZES = [5, 2, 1, 1, 3, 1, 1, 4, 1, 7, 1]
"""Tokens of each call: below the window, at it, beyond it, and as many as it may be long."""
TEXT = torch.tensor([make_sink_models.text(sum(SIZES))])


def frequencies(model: Any, layer: int) -> Tensor | None:
    """Radians per position of the pairs of the reference's keys, negative if turned back."""
    name, config = model.config.model_type, model.config
    if name in ("bloom", "mpt"):
        return None
    if name == "gptj":
        size = config.rotary_dim
        return 1 / 10000 ** (torch.arange(0, size, 2).float() / size)
    if name == "smollm3" and not config.no_rope_layers[layer]:
        return None
    rotary = getattr(model, "gpt_neox", None) or model.model
    kind = f"{config.layer_types[layer]}_inv_freq" if name == "gemma3_text" else "inv_freq"
    found: Tensor = getattr(rotary.rotary_emb, kind)
    return -found if name == "nanochat" else found


def keeping(model: Any) -> Any:
    """A cache of the reference for this model; ``room`` drops what is too much."""
    import transformers

    is_paired = model.config.model_type in ("gptj", "cohere", "glm4")

    class Keeping(transformers.DynamicCache):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.held: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return len(self.held[layer_idx][2]) if layer_idx in self.held else 0

        def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
            return self.get_seq_length(layer_idx) + query_length, 0

        def room(self, size: int) -> int:
            length = self.get_seq_length()
            excess = max(min(length + size - WINDOW, length - SINKS), 0)
            kept = [*range(min(SINKS, length)), *range(SINKS + excess, length)]
            for layer, (keys, values, came) in self.held.items():
                self.held[layer] = keys[:, :, kept], values[:, :, kept], came[kept]
            return self.get_seq_length()

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            place = torch.arange(self.get_seq_length(layer_idx), 99)[: key_states.shape[2]]
            new = key_states, value_states, place
            if layer_idx in self.held:
                keys, values, came = self.held[layer_idx]
                new = (
                    torch.cat((keys, new[0]), 2),
                    torch.cat((values, new[1]), 2),
                    torch.cat((came, place)),
                )
            self.held[layer_idx] = new
            keys, values, came = new
            return turned(keys, torch.arange(len(came)) - came, layer_idx), values

    def turned(keys: Tensor, by: Tensor, layer: int) -> Tensor:
        radians = frequencies(model, layer)
        if radians is None:
            return keys
        angles = by[:, None] * radians
        size = 2 * len(radians)
        part = keys[..., :size]
        one, other = (part[..., ::2], part[..., 1::2]) if is_paired else part.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        pair = one * cos - other * sin, other * cos + one * sin
        both = torch.stack(pair, -1).flatten(-2) if is_paired else torch.cat(pair, -1)
        return torch.cat((both, keys[..., size:]), -1)

    return Keeping()


def runs_as_the_reference(pair: Pair) -> None:
    theirs, ours, begin = keeping(pair.theirs), SinkCache(WINDOW, SINKS), 0
    pair.theirs.set_attn_implementation("eager")
    counts_itself = pair.theirs.config.model_type in ("bloom", "mpt")
    for size in SIZES:
        start, ids = theirs.room(size), TEXT[:, begin : begin + size]
        told: dict[str, Any] = {"attention_mask": torch.ones(1, start + size)}
        if not counts_itself:
            told["position_ids"] = torch.arange(start, start + size)[None]
        expected = pair.theirs(ids, past_key_values=theirs, **told).logits
        found = pair.ours(ids, past_key_values=ours).logits
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        begin += size
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.text_length == begin
        keys, values, came = theirs.held[1]
        kept = ours[1]
        assert torch.allclose(kept[1], values, atol=1e-4)
        if pair.ours.config.model_type == "llama":  # whose keys lie here as they lie there
            moved = (came != torch.arange(len(came)))[:, None]
            assert torch.isclose(kept[0], keys, atol=1e-4).logical_or(moved).all()


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _yarn()),
    "gptj": ("gptj", {}),
    "bloom": ("bloom", {}),
    "smollm3": ("smollm3", {}),
    "plain": ("llama", {}),
    "phi": ("phi", {}),
    "cohere": ("cohere", {}),
    "glm4": ("glm4", {}),
    "gpt_neox": ("gpt_neox", {}),
    "mpt": ("mpt", {}),
    "gpt_oss": ("gpt_oss", {"sliding_window": 64}),
    "nanochat": ("nanochat", {}),
    "gemma3": ("gemma3_text", {}),
}


@torch.no_grad()
@for_each("name", [*CASES][:4])
def test_a_model_counts_places_in_the_cache(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    family, options = CASES[name]
    runs_as_the_reference(make_pair(family, tmp_path / name, **options))


@torch.no_grad()
@pytest.mark.gate
@for_each("name", [*CASES][4:])
def test_every_kind_of_positions_counts_places_in_the_cache(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    family, options = CASES[name]
    runs_as_the_reference(make_pair(family, tmp_path / name, **options))


@pytest.fixture
def tiny(tmp_path: Path) -> Any:
    tiny_llama.save(tmp_path, make_sink_models.SEED)
    return asyncgen.load_model(tmp_path, dtype="float32")


@pytest.fixture(scope="module")
def old() -> dict[str, Any]:
    file = Path(make_sink_models.__file__).with_name("sink_models.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_logits_are_those_of_the_release_that_had_it(tiny: Any, old: dict[str, Any]) -> None:
    cache = SinkCache(make_sink_models.WINDOW, make_sink_models.SINKS)
    text = make_sink_models.text(30)
    found = [tiny(torch.tensor([[token]]), past_key_values=cache).logits[0, -1] for token in text]
    expected = torch.tensor(old["steps"])
    kept = torch.stack(found[make_sink_models.RIGHT_FROM :])
    torch.testing.assert_close(kept, expected, atol=2e-4, rtol=0)


def test_generated_tokens_are_those_of_the_release_that_had_it(
    tmp_path: Path, old: dict[str, Any]
) -> None:
    tiny_llama.save(tmp_path, make_sink_models.SEED)
    (tmp_path / "config.json").write_text(json.dumps(make_sink_models.UNTURNED), encoding="utf-8")
    model = asyncgen.load_model(tmp_path, dtype="float32")
    prompt, cache = torch.tensor([make_sink_models.text(5)]), SinkCache(WINDOW, SINKS)
    found: Any = model.generate(prompt, past_key_values=cache, max_new_tokens=24, do_sample=False)
    assert found[0, 5:].tolist() == old["generated"]


PROMPTS = torch.tensor([make_sink_models.text(10), [0] * 4 + make_sink_models.text(6)])
MASK = (torch.arange(10) >= torch.tensor([[0], [4]])).long()
CALLS: list[dict[str, Any]] = [
    {},
    {"num_beams": 3},
    {"num_beams": 2, "num_return_sequences": 2},
    {"prefill_chunk_size": 3},
    {"dola_layers": [0]},
    {"output_hidden_states": True, "return_dict_in_generate": True},
]


@for_each("call", CALLS)
def test_a_padded_row_keeps_its_own_first_tokens(call: dict[str, Any], tiny: Any) -> None:
    call = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False} | call

    def run(ids: Tensor, **more: Any) -> list[list[int]]:
        found: Any = tiny.generate(ids, past_key_values=SinkCache(12, SINKS), **call, **more)
        found = found if isinstance(found, torch.Tensor) else found.sequences
        rows: list[list[int]] = found[:, ids.shape[1] :].tolist()
        return rows

    together = run(PROMPTS, attention_mask=MASK)
    assert together == run(PROMPTS[:1]) + run(PROMPTS[1:, 4:])


@for_each("call", [*CALLS[:3], {"do_sample": True, "top_k": 9}])
def test_a_text_within_the_window_is_that_of_any_cache(call: dict[str, Any], tiny: Any) -> None:
    found = []
    for cache in (SinkCache(40, SINKS), DynamicCache()):
        torch.manual_seed(0)
        options = {"attention_mask": MASK, "max_new_tokens": 12, "past_key_values": cache, **call}
        found.append(tiny.generate(PROMPTS, **options))
    assert torch.equal(*found)


def test_the_next_turn_reads_what_is_new(tiny: Any) -> None:
    cache = SinkCache(WINDOW, SINKS)
    first = tiny.generate(PROMPTS[:1], past_key_values=cache, max_new_tokens=9, do_sample=False)
    read = cache.text_length
    assert (read, cache.get_seq_length()) == (18, WINDOW)
    again, other = SinkCache(WINDOW, SINKS), torch.cat((first, PROMPTS[1:, 4:]), dim=1)
    tiny(PROMPTS[:1], past_key_values=again)
    for token in first[0, 10:read].tolist():
        tiny(torch.tensor([[token]]), past_key_values=again)
    logits = tiny(other[:, read:], past_key_values=again).logits[0, -1]
    call: dict[str, Any] = {"output_logits": True, "return_dict_in_generate": True}
    found = tiny.generate(other, past_key_values=cache, max_new_tokens=1, do_sample=False, **call)
    torch.testing.assert_close(found.logits[0][0], logits, atol=1e-5, rtol=1e-5)
    for is_whole in (True, False):
        length = cache.text_length if is_whole else cache.get_seq_length()
        tiny(first[:, -1:], past_key_values=cache, attention_mask=torch.ones(1, length + 1))


def test_a_model_of_ones_own_runs_with_it(tiny: Any) -> None:
    class Own(type(tiny)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    own = Own(tiny.core, tiny.generation_config)
    call: dict[str, Any] = {"max_new_tokens": 14, "do_sample": False}
    found = [
        model.generate(PROMPTS, attention_mask=MASK, past_key_values=SinkCache(9, 3), **call)
        for model in (tiny, own)
    ]
    assert torch.equal(*found)


def test_learned_positions_stay_those_of_the_text(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pair, cache = make_pair("gpt2", tmp_path), SinkCache(WINDOW, 0)
    for place, token in enumerate(TEXT[0, :20].tolist()):
        collected: Any = pair.ours(
            torch.tensor([[token]]), past_key_values=cache, output_hidden_states=True
        )
        table = pair.theirs.transformer
        expected = table.wte.weight[token] + table.wpe.weight[place]
        torch.testing.assert_close(collected.hidden_states[0][0, 0], expected)


def refuse(run: Callable[[], object], match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        run()


def test_what_cannot_move_up_is_refused(tiny: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    ids, cache = TEXT[:, :3], SinkCache(WINDOW, SINKS)
    given: Iterable[tuple[dict[str, Any], str]] = (
        ({"penalty_alpha": 0.6, "top_k": 3}, "past_key_values"),
        ({"prompt_lookup_num_tokens": 2}, "past_key_values"),
        ({"assistant_model": tiny}, "past_key_values"),
        ({"position_ids": torch.arange(3)[None]}, "position_ids"),
    )
    for options, name in given:
        call = partial(tiny.generate, ids, past_key_values=cache, max_new_tokens=3)
        refuse(partial(call, **options), name)
    refuse(lambda: tiny(ids, past_key_values=cache, position_ids=torch.arange(3)), "position_ids")
    refuse(lambda: tiny(ids, past_key_values=cache, attention_mask=torch.ones(1, 5)), "whole text")
    refuse(lambda: cache.crop(1), "do not come back")
    assert cache.text_length == 0
    for family, why in (
        ("mamba", "keep states"),
        ("hunyuan_v1_dense", "behind their rotation"),
        ("gemma3n_text", "between layers"),
    ):
        model = make_pair(family, tmp_path / family).ours
        refuse(partial(model, ids, past_key_values=SinkCache(8, 2)), why)
    save_checkpoint(tmp_path / "t5", **SAVED["t5"])
    model = asyncgen.load_model(tmp_path / "t5")
    own = EncoderDecoderCache(SinkCache(8, 2), DynamicCache())
    refuse(partial(model.generate, ids, past_key_values=own, max_new_tokens=3), "SinkCache")
    changing = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
    model = make_pair("llama", tmp_path / "dynamic", **changing, max_position_embeddings=16).ours
    wide = SinkCache(32, 2)
    call = partial(model.generate, ids, past_key_values=wide, max_new_tokens=30)
    refuse(call, "shorter window")
