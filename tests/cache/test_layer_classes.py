"""The documented classes of layers, beside those of transformers: tensors, lengths and models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

import asyncgen
from asyncgen.errors import InvalidRequestError
from tests.cases import for_each
from tests.generation.strategies.pairs import pair

if TYPE_CHECKING:
    from pathlib import Path

reference = pytest.importorskip("transformers.cache_utils")

LAYERS: list[tuple[str, tuple[int, ...]]] = [
    ("DynamicLayer", ()),
    ("DynamicSlidingWindowLayer", (4,)),
    ("DynamicSlidingWindowLayer", (9,)),
    ("StaticLayer", (40,)),
    ("StaticSlidingWindowLayer", (40, 4)),
    ("StaticSlidingWindowLayer", (40, 9)),
    ("StaticSlidingWindowLayer", (6, 6)),
    ("Fp8QuantizedLayer", ()),
]
SIZES = [(5, 1, 1, 1, 3, 1), (1, 1, 1, 1, 1, 1, 1), (3, 3, 3, 3), (12, 1, 1, 4), (4, 1)]
IDS = torch.tensor([[5, 9, 11, 4, 7, 5, 9, 11]])


def states(size: int, seed: int = 0, rows: int = 2, width: int = 8) -> Tensor:
    return torch.randn(rows, 2, size, width, generator=torch.Generator().manual_seed(seed))


def both(name: str, given: tuple[Any, ...]) -> tuple[Any, Any]:
    """The layer here and the one of transformers."""
    return getattr(asyncgen, name)(*given), getattr(reference, name)(*given)


def write(layer: Any, size: int, seed: int) -> tuple[Tensor, Tensor]:
    keys, values = layer.update(states(size, seed), states(size, seed + 50))
    return keys.clone(), values.clone()


def assert_alike(ours: Any, theirs: Any) -> None:
    assert ours.get_seq_length() == int(theirs.get_seq_length())
    assert ours.get_max_length() == theirs.get_max_length()
    assert ours.is_sliding is theirs.is_sliding
    assert ours.is_compileable is theirs.is_compileable
    for size in (1, 3):
        assert ours.get_mask_sizes(size) == theirs.get_mask_sizes(size)
    if theirs.keys is not None and theirs.keys.numel():  # those of fp8 are empty there
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)


@for_each("sizes", SIZES)
@for_each(("name", "given"), LAYERS)
def test_a_layer_returns_and_keeps_what_that_of_the_reference_does(
    name: str, given: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    ours, theirs = both(name, given)
    for again in range(2):
        for seed, size in enumerate(sizes):
            for mine, yours in zip(write(ours, size, seed), write(theirs, size, seed), strict=True):
                assert torch.equal(mine, yours)
            assert_alike(ours, theirs)
        if not again:
            ours.reset()
            theirs.reset()
            assert ours.get_seq_length() == int(theirs.get_seq_length()) == 0


@for_each(("name", "given"), [each for each in LAYERS if each[0] != "Fp8QuantizedLayer"])
def test_rows_are_reordered_as_in_the_reference(name: str, given: tuple[int, ...]) -> None:
    ours, theirs = both(name, given)
    for layer in (ours, theirs):
        write(layer, 5, 0)
        layer.reorder_cache(torch.tensor([1, 1]))
        write(layer, 1, 1)
        if name.startswith("Dynamic"):
            layer.batch_repeat_interleave(2)
            layer.batch_select_indices(torch.tensor([3, 0, 2]))
    assert_alike(ours, theirs)


@for_each("width", [4, 9, 40])
@for_each("removed", [0, 1, 3])
def test_a_window_that_records_its_past_gives_positions_back(width: int, removed: int) -> None:
    ours, theirs = both("DynamicSlidingWindowLayer", (width,))
    for layer in (ours, theirs):
        layer.activate_past_recording()
        for seed, size in enumerate((6, 4, 4)):
            write(layer, size, seed)
    assert_alike(ours, theirs)
    ours.crop(tokens_to_remove=-removed)
    theirs.crop(-removed)
    assert_alike(ours, theirs)
    assert torch.equal(write(ours, 2, 9)[0], write(theirs, 2, 9)[0])


def test_zero_positions_to_crop_are_refused_where_the_name_does_not_say_what_is_meant() -> None:
    for cropped in (asyncgen.DynamicLayer(), asyncgen.DynamicCache()):
        state = (states(3), states(3))
        cropped.update(*state, *([0] if isinstance(cropped, asyncgen.Cache) else []))
        with pytest.raises(InvalidRequestError, match="`keep none` in older code"):
            cropped.crop(0)
        cropped.crop(tokens_to_remove=0)
        assert cropped.get_seq_length() == 3
        cropped.crop(-2)
        assert cropped.get_seq_length() == 1
        cropped.reset()
        cropped.crop(0)
        assert cropped.get_seq_length() == 0


def test_keys_and_values_of_different_sizes_are_kept() -> None:
    for name, given in LAYERS:
        if name == "Fp8QuantizedLayer":
            continue
        ours, theirs = both(name, given)
        for seed, size in enumerate((5, 1, 2)):
            new = states(size, seed, width=6), states(size, seed, width=4)
            for mine, yours in zip(ours.update(*new), theirs.update(*new), strict=True):
                assert torch.equal(mine, yours)
        assert_alike(ours, theirs)


def test_keys_and_values_can_be_assigned() -> None:
    """Code that drops positions of less use assigns both, one after the other."""
    kept = torch.tensor([0, 3, 4])
    for name, given in (("DynamicLayer", ()), ("DynamicSlidingWindowLayer", (40,))):
        ours, theirs = both(name, given)
        for layer in (ours, theirs):
            write(layer, 6, 0)
            layer.keys = layer.keys[:, :, kept]
            layer.values = layer.values[:, :, kept]
            layer.keys = layer.keys * 2
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(write(ours, 2, 1)[1], write(theirs, 2, 1)[1])
        assert ours.get_seq_length() == theirs.get_seq_length()
    layer = asyncgen.DynamicLayer()
    write(layer, 6, 0)
    layer.keys = states(3)
    with pytest.raises(InvalidRequestError, match="of another shape than the `values`"):
        write(layer, 1, 1)


def test_a_cache_made_of_layers_answers_as_that_of_the_reference() -> None:
    caches = []
    for module in (asyncgen, reference):
        layers = [module.DynamicLayer(), module.DynamicSlidingWindowLayer(4)]
        cache = module.Cache(layers=layers)
        for index in (0, 1):
            cache.update(states(5), states(5, 1), index)
        caches.append(cache)
    ours, theirs = caches
    assert ours.is_sliding == theirs.is_sliding == [False, True]
    assert ours.get_seq_length() == theirs.get_seq_length() == ours.get_query_offset(1) == 5
    for layer in (0, 1, 2):
        assert ours.get_mask_sizes(2, layer) == theirs.get_mask_sizes(2, layer)
    assert ours.is_compileable is theirs.is_compileable is False
    assert ours.is_initialized is theirs.is_initialized is True
    growing = asyncgen.Cache(layer_class_to_replicate=asyncgen.DynamicLayer)
    growing.update(states(2), states(2), 1)
    assert len(growing) == 2 and growing.get_seq_length(1) == 2
    given: dict[str, Any] = {"layers": [], "layer_class_to_replicate": asyncgen.DynamicLayer}
    for wrong in ({}, given):
        with pytest.raises(InvalidRequestError, match="one of the two"):
            asyncgen.Cache(**wrong)


def test_tensors_of_a_fixed_shape_are_there_before_the_first_keys() -> None:
    for module in (asyncgen, reference):
        layers = [module.StaticLayer(7), module.StaticSlidingWindowLayer(7, 3)]
        cache = module.Cache(layers=layers)
        assert not cache.is_initialized
        cache.early_initialization(2, [2, 1], 8, torch.float16, torch.device("cpu"))
        assert cache.is_initialized and cache.batch_size == 2 and cache.is_compileable
        shapes = [list(layer.keys.shape) for layer in cache.layers]
        assert shapes == [[2, 2, 7, 8], [2, 1, 3, 8]]
        assert cache.layers[0].keys.dtype is torch.float16


@pytest.mark.parametrize(
    "model_type",
    ["mistral", *(pytest.param(each, marks=pytest.mark.gate) for each in ("llama", "gemma2"))],
)
def test_generate_with_the_cache_of_a_configuration(model_type: str, tmp_path: Path) -> None:
    shape = {} if model_type == "llama" else {"sliding_window": 5}
    theirs, ours = pair(tmp_path / model_type, 3, model_type, **shape)
    call: dict[str, Any] = {"max_new_tokens": 9, "return_dict_in_generate": True}
    for beams in (1, 2):
        given = {"num_beams": beams, "do_sample": False}
        yours = theirs.generate(
            IDS, past_key_values=reference.DynamicCache(config=theirs.config), **given, **call
        )
        cache = asyncgen.DynamicCache(config=ours.config)
        mine = ours.generate(IDS, past_key_values=cache, **given, **call)
        assert mine.sequences.tolist() == yours.sequences.tolist()
        assert mine.past_key_values is cache
        assert cache.is_sliding == yours.past_key_values.is_sliding
        for layer, other in zip(cache.layers, yours.past_key_values.layers, strict=True):
            torch.testing.assert_close(layer.keys, other.keys, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(layer.values, other.values, atol=1e-5, rtol=1e-4)


@for_each(
    "options",
    [
        {"prompt_lookup_num_tokens": 3},
        {"assistant_early_exit": 1},
        {"penalty_alpha": 0.6, "top_k": 3},
        {"penalty_alpha": 0.6, "top_k": 3, "low_memory": True},
    ],
)
def test_strategies_that_go_back_work_with_windows(options: Any, tmp_path: Path) -> None:
    _, ours = pair(tmp_path, 3, "mistral", sliding_window=5)
    expected = ours.generate(IDS, max_new_tokens=40, **options)
    cache = asyncgen.DynamicCache(config=ours.config)
    found = ours.generate(IDS, max_new_tokens=40, past_key_values=cache, **options)
    assert found.tolist() == expected.tolist()
    assert cache.layers[0].keys is not None and cache.layers[0].keys.shape[2] <= 5 + 3


class Doubling(asyncgen.CacheLayerMixin):
    """A user's own layer: the five methods of the documented base."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        self.keys = torch.cat((self.keys, key_states), dim=-2)
        self.values = torch.cat((self.values, 2 * value_states), dim=-2)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[-2]

    def get_max_length(self) -> int:
        return -1


class DoublingLayer(asyncgen.DynamicLayer):
    """A user's change of a layer."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return super().update(key_states, 2 * value_states)


class DoublingCache(asyncgen.DynamicCache):
    """A user's change of a cache."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return super().update(key_states, 2 * value_states, layer_idx)


class TheirDoublingCache(reference.DynamicCache):  # type: ignore[misc, name-defined]
    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any) -> Any:
        return super().update(key_states, 2 * value_states, layer_idx)


@for_each(
    "make",
    [
        lambda: asyncgen.Cache(layer_class_to_replicate=Doubling),
        lambda: asyncgen.Cache(layers=[DoublingLayer() for _ in range(3)]),
        lambda: DoublingCache(),
    ],
    ids=lambda make: type(make()).__name__,
)
@for_each("beams", [1, 3])
def test_a_users_own_update_is_what_a_model_attends_to(
    make: Any, beams: int, tmp_path: Path
) -> None:
    theirs, ours = pair(tmp_path, 3)
    call: dict[str, Any] = {"max_new_tokens": 9, "num_beams": beams, "do_sample": False}
    plain = theirs.generate(IDS, **call)
    expected = theirs.generate(IDS, past_key_values=TheirDoublingCache(), **call)
    assert expected.tolist() != plain.tolist()
    found = ours.generate(IDS, past_key_values=make(), **call)
    assert found.tolist() == expected.tolist()


def test_a_layer_that_cannot_do_what_a_model_asks_is_refused(tmp_path: Path) -> None:
    _, ours = pair(tmp_path, 3)
    few = asyncgen.Cache(layers=[asyncgen.DynamicLayer()])
    narrow = asyncgen.Cache(layer_class_to_replicate=lambda: asyncgen.DynamicSlidingWindowLayer(2))
    for cache, named in ((few, "a layer for each"), (narrow, "give the layer the model's window")):
        with pytest.raises(InvalidRequestError, match=named):
            ours.generate(IDS, max_new_tokens=200, min_new_tokens=200, past_key_values=cache)
    layer = Doubling()
    layer.update(states(3), states(3))
    with pytest.raises(InvalidRequestError, match="its class has no `crop`"):
        layer.crop(-1)
