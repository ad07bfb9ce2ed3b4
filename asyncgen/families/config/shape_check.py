"""Compare the sizes of a ``config.json`` with the stored tensors, before anything is built of it.

Building costs time and memory for every layer and every position of a table, however little the
files hold. The names of the tensors are compared later, by the rules of the architecture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.plans.config_values import bad
from asyncgen.families.plans.delta_plan import DeltaPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.families.config.model_config import ModelConfig


_LAYERS = ("num_hidden_layers", "num_encoder_layers")
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "head_dim",
    "relative_attention_num_buckets",
)
_DELTA_SIZES = (("linear_key_head_dim", "keys"), ("linear_value_head_dim", "values"))


def check_sizes(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse sizes that no stored tensor confirms.

    Args:
        config: Content of ``config.json``.
        shapes: Shapes of the stored tensors, by name.

    Raises:
        ModelLoadError: Names the key, its value, and the stored size.
    """
    numbers = {part for name in shapes for part in name.split(".") if part.isdecimal()}
    for field in _LAYERS:
        layers = getattr(config, field, 0)
        if layers > len(numbers):
            raise bad(_key(config, field), layers, f"the weights have {len(numbers)} layers")
    # A tensor without elements may claim any length.
    longest = max((max(shape) for shape in shapes.values() if shape and 0 not in shape), default=0)
    sizes = {field: getattr(config, field, 0) for field in _SIZES}
    experts = [plan.experts for plan in config.layer_plans if plan.experts is not None]
    if experts and all(plan.experts or not plan.has_feed_forward for plan in config.layer_plans):
        sizes["intermediate_size"] = max(plan.width for plan in experts)
    heads, head = config.num_attention_heads, config.head_dim
    if config.layer_plans[0].is_differential:
        head //= 2
    latent = config.layer_plans[0].latent
    if latent is not None:
        head = max(latent.rope_dim + latent.nope_dim, latent.values)
        sizes |= {"kv_lora_rank": latent.rank, "q_lora_rank": latent.query_rank or 0}
        sizes |= {"qk_rope_head_dim": latent.rope_dim, "qk_nope_head_dim": latent.nope_dim}
        sizes |= {"v_head_dim": latent.values}
        del sizes["head_dim"]
    for field, size in sizes.items():
        if size > longest:
            raise bad(_key(config, field), size, _too_long(longest))
    if heads * head > longest:
        raise bad(_key(config, "head_dim"), head, f"with {heads} heads, {_too_long(longest)}")
    for plan in {plan.mixer for plan in config.layer_plans if isinstance(plan.mixer, DeltaPlan)}:
        key, size = max(_DELTA_SIZES, key=lambda each: getattr(plan, each[1]))
        wide = getattr(plan, size)
        if plan.heads * wide > longest:
            stated = key if key in config.raw else "linear_head_dim"
            raise bad(_key(config, stated), wide, f"with {plan.heads} heads, {_too_long(longest)}")
    places = config.position_limit or 0
    if places > longest:
        raise bad(_key(config, "max_position_embeddings"), places, _too_long(longest))


def _too_long(longest: int) -> str:
    return f"no side of a stored tensor is longer than {longest}"


def _key(config: ModelConfig, field: str) -> str:
    """Return the file's name of a field."""
    spellings = {**FAMILIES[config.model_type].spellings, "num_encoder_layers": "num_layers"}
    if config.is_encoder_decoder and field == "num_hidden_layers":
        spellings[field] = "num_decoder_layers"
    theirs = spellings.get(field, field)
    return theirs if theirs in config.raw else field
