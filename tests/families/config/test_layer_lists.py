"""Lists with an entry for each layer: refused by name, and read only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.errors import ModelLoadError
from asyncgen.families.config import ModelConfig
from tests.cases import for_each
from tests.families.arch.families import COMMON, FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator


class Counted(list[Any]):
    """A list that counts how often it is read."""

    rounds = 0

    def __iter__(self) -> Iterator[Any]:
        self.rounds += 1
        return super().__iter__()


def read(family: str, **keys: object) -> ModelConfig:
    own = {key: value for key, value in FAMILIES[family].items() if key != "layer_types"}
    given = {"model_type": family, **COMMON, **own, **keys}
    return ModelConfig.from_hf({key: value for key, value in given.items() if value is not ...})


@for_each(
    ("family", "key", "entry"),
    [
        ("granite_swa", "layer_rope_theta", 5e3),
        ("gemma3n_text", "activation_sparsity_pattern", 0.5),
        ("gemma3n_text", "intermediate_size", 48),
        ("mimo_v2_flash", "hybrid_layer_pattern", 1),
        ("mimo_v2_flash", "moe_layer_freq", 1),
        ("exaone_moe", "mlp_layer_types", "sparse"),
        ("glm4_moe_lite", "mlp_layer_types", "sparse"),
        ("flint", "mlp_only_layers", 3),
        ("llama4_text", "no_rope_layers", 1),
        ("llama4_text", "moe_layers", 3),
        ("minimax_m2", "attn_type_list", 1),
    ],
)
def test_a_list_of_many_layers_is_gone_through_a_few_times(
    family: str, key: str, entry: object
) -> None:
    more = {"activation_sparsity_pattern": None} if key == "intermediate_size" else {}
    stated = Counted([entry] * 300)
    read(family, num_hidden_layers=300, **{**more, key: stated})
    assert stated.rounds < 10


@for_each(
    ("family", "key", "value"),
    [
        ("minimax_m2", "attn_type_list", [1, 0, 1, 1]),
        ("minimax_m2", "attn_type_list", [1, 1]),
        ("llama4_text", "attn_temperature_tuning", "yes"),
        ("llama4_text", "moe_layers", ["1"]),
        ("llama4_text", "no_rope_layers", ["x"] * 4),
        ("mimo_v2_flash", "hybrid_layer_pattern", [[1]] * 4),
        ("mimo_v2_flash", "moe_layer_freq", [{}] * 4),
        ("granite_swa", "layer_rope_theta", [True] * 4),
        ("gemma3n_text", "intermediate_size", [2**70] * 6),
        ("gemma4_text", "per_layer_config", {"6": {"head_dim": 8}}),
        ("gemma4_text", "per_layer_config", {"1": {"head_dim": 2**70}}),
    ],
)
def test_impossible_layer_lists_are_refused_by_name(family: str, key: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=rf"`{key}` is .*(must|whole)"):
        read(family, **{key: value})
