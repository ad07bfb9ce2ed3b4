"""A sink cache keeps the first positions and the last ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.sink import SinkCache
from asyncgen.errors import InvalidRequestError
from tests.cache.old import angles, expected, steps_of, waves, written
from tests.cases import for_each
from tests.doubles.models import TableModel

if TYPE_CHECKING:
    from torch import Tensor


def test_sinks_and_the_newest_stay() -> None:
    cache = SinkCache(window_length=6, num_sink_tokens=2)
    whole = torch.arange(20.0).view(1, 1, 20, 1)
    for start, end in ((0, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 10)):
        keys, values = cache.update(whole[:, :, start:end], -whole[:, :, start:end], 0)
        wanted = list(range(end)) if end <= 6 else [0, 1, *range(end - 4, end)]
        assert keys.flatten().tolist() == wanted
        assert values.flatten().tolist() == [-number for number in wanted]
    assert cache.get_seq_length() == cache.get_max_cache_shape() == 6
    cache.reorder_cache(torch.tensor([0, 0]))
    assert cache[0][0].shape == (2, 1, 6, 1)


@pytest.mark.parametrize(
    ("arguments", "name"), [((4, 4), "window_length"), ((4, -1), "num_sink_tokens")]
)
def test_numbers_out_of_range(arguments: tuple[int, int], name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        SinkCache(*arguments)


@pytest.mark.parametrize("case", steps_of("SinkCache"), ids=lambda case: case["sizes"])
def test_kept_positions_equal_the_reference(case: dict[str, Any]) -> None:
    cache, begin = SinkCache(**case["arguments"]), 0
    doubled = False
    for size, step in zip(case["sizes"], case["steps"], strict=True):
        for index, theirs in enumerate(step["layers"]):
            ours = written(cache, index, begin, size)
            # Where as many are new as there is room for, that release keeps the rest twice over.
            doubled = len({*theirs["keys"][0]}) < len(theirs["keys"][0])
            if doubled:
                sinks = list(range(1, cache.num_sink_tokens + 1))
                assert ours["keys"][0] == sinks + list(range(begin + 1, begin + size + 1))
            else:
                assert ours == theirs
        begin += size
        assert doubled or cache.get_seq_length() == step["length"]
    assert doubled == (case["sizes"] == [5, 4])
    assert cache.get_max_cache_shape() == cache.get_max_length() == case["max_cache_shape"]
    if not doubled:
        cache.reorder_cache(torch.tensor([1, 0]))
        assert cache[1][0][:, 0, :, 0].tolist() == case["reordered"]


def told(cache: SinkCache, size: int, head_dim: int) -> dict[str, Any]:
    """Pass the angles of the next positions."""
    length, kept = cache.get_seq_length(), cache.window_length
    cos, sin = angles(min(length, max(kept - size, 0)), size, head_dim)
    return {"cos": cos[None], "sin": sin[None]}


UNSETTLED = {4: 5, 8: 2}
"""Steps that are not compared, by the first one's size.

That release turns keys back by as many positions as are new, however many were dropped. It is
right once the window is full, and its wrong keys are gone.
"""


@for_each("case", expected()["turned"], ids=lambda case: case["sizes"])
@for_each("is_batched", [True, False])
def test_keys_are_turned_as_by_the_reference(case: dict[str, Any], is_batched: bool) -> None:
    cache, begin = SinkCache(6, 2), 0
    for number, (size, step) in enumerate(zip(case["sizes"], case["steps"], strict=True)):
        given = told(cache, size, case["partial"] or case["head_dim"])
        if not is_batched:
            given = {name: value[0] for name, value in given.items()}
        if case["partial"] is not None:
            given["partial_rotation_size"] = case["partial"]
        keys = waves(begin, size, case["head_dim"])
        for layer in (0, 1):
            found, values = cache.update(keys, keys, layer, given)
            assert torch.equal(values[:, :, -size:], keys)
            assert found.shape[2:] == torch.tensor(step).shape
            if number >= UNSETTLED.get(case["sizes"][0], 0):
                torch.testing.assert_close(found[0, 0], torch.tensor(step), atol=2e-5, rtol=0)
        begin += size


@for_each("scale", [1.0, 1.3])
@for_each("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_kept_keys_are_those_of_their_new_places(scale: float, dtype: torch.dtype) -> None:
    cache, plain = SinkCache(7, 1), waves(0, 40, 8)

    def turned(begin: int, places: int, size: int) -> Tensor:
        cos, sin = (scale * each for each in angles(places, size, 8))
        keys = plain[:, :, begin : begin + size]
        first, second = keys.chunk(2, dim=-1)
        return keys * cos + torch.cat((-second, first), dim=-1) * sin

    end = 0
    for size in (3, 2, 4, 1, 1, 2, 1, 6, 1):
        place = min(cache.get_seq_length(), 7 - size)
        cos, sin = angles(place, size, 8)
        given = {"cos": scale * cos, "sin": scale * sin}
        new = turned(end, place, size).to(dtype)
        found, _ = cache.update(new, new, 0, given)
        end += size
        rest = found.shape[2] - 1
        wanted = torch.cat((turned(0, 0, 1), turned(end - rest, 1, rest)), dim=2)
        wide = 0.1 if dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(found.float(), wanted, atol=wide, rtol=0)
    cache.reset()
    assert cache.get_seq_length() == 0


def test_sink_cache_refuses_unsupported_use() -> None:
    cache = SinkCache(6, 2)
    states = torch.zeros(1, 1, 1, 2)
    with pytest.raises(InvalidRequestError, match="go together"):
        cache.update(states, states, 0, {"sin": states})
    assert cache.get_seq_length() == 0
    with pytest.raises(InvalidRequestError, match="SinkCache"):
        TableModel().generate(torch.tensor([[1, 2]]), past_key_values=cache, max_new_tokens=2)
