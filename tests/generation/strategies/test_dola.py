"""DoLa: the tokens of the reference, and which layers are contrasted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.dola import early_layers
from tests.cases import for_each
from tests.generation.strategies.old import cases, check_inside, generate, model_of


@for_each("case", cases("dola_layers"), ids=lambda case: str(case["call"]))
@for_each("chunk", [None, 2])
def test_tokens_and_scores_are_those_of_the_reference(
    case: dict[str, Any], chunk: int | None
) -> None:
    found = generate(case, prefill_chunk_size=chunk)
    assert found.sequences.tolist() == case["sequences"]
    for name in ("scores", "logits"):
        highest = [float(row.max()) for row in getattr(found, name)]
        assert highest == pytest.approx(case[f"highest_{name}"], abs=2e-4)


@for_each("case", cases("dola_layers"), ids=lambda case: str(case["call"]))
def test_hidden_states_and_attentions_equal_the_reference(case: dict[str, Any]) -> None:
    found = generate(case, output_hidden_states=True, output_attentions=True)
    assert found.sequences.tolist() == case["sequences"]
    check_inside(found, case)


@for_each(
    ("wanted", "layers", "tied", "expected"),
    [
        ("low", 32, False, list(range(0, 16, 2))),
        ("high", 32, False, list(range(16, 32, 2))),
        ("low", 32, True, list(range(2, 16, 2))),
        ("high", 32, True, list(range(16, 32, 2))),
        ("low", 48, False, list(range(0, 20, 2))),
        ("high", 48, False, list(range(28, 48, 2))),
        ("low", 4, True, [2]),
        ("low", 2, True, [1]),
        ([7, 3, 3], 8, False, [3, 7]),
    ],
)
def test_the_documented_layers(wanted: Any, layers: int, tied: bool, expected: list[int]) -> None:
    assert early_layers(wanted, layers, tied=tied) == expected


@for_each("wanted", ["middle", [4], [-1], [], [True], 2, ["low"]])
def test_layers_that_there_are_not(wanted: Any) -> None:
    with pytest.raises(InvalidRequestError, match="dola_layers"):
        model_of(0).generate(torch.tensor([[5, 9]]), dola_layers=wanted)


def test_a_cache_is_continued() -> None:
    from asyncgen.cache.caches import DynamicCache

    model, cache = model_of(0), DynamicCache()
    options: dict[str, Any] = {"dola_layers": "low", "max_new_tokens": 6, "eos_token_id": 96}
    first = model.generate(torch.tensor([[5, 9, 11]]), past_key_values=cache, **options)
    found = model.generate(first, past_key_values=cache, **options)
    assert found.tolist() == model.generate(first, **options).tolist()
