"""Complete a description by the stored tensors' spelling of names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.config.model_config import T5Config

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from asyncgen.families.config.model_config import ModelConfig


def fit_to_stored(config: ModelConfig, stored: Collection[str]) -> ModelConfig:
    """Fit a description to the tensors of a checkpoint.

    Args:
        config: The network as its ``config.json`` and its family's rules describe it.
        stored: Names of the stored tensors.

    Returns:
        The same with the names that these files have, see `Family.other_names`, and with that of
        the one tensor of all experts if there is one.
    """
    if isinstance(config, T5Config):
        return config
    others = FAMILIES[config.model_type].other_names
    if others:
        config = _with_names_as_stored(config, others, stored)
    return _with_stacked_experts(config, stored)


def _with_names_as_stored(
    config: ModelConfig, others: Mapping[str, str], stored: Collection[str]
) -> ModelConfig:
    """Use the other spellings of modules if files have those."""
    kinds = [kind if kind in config.names_by_kind else None for kind in config.layer_types]

    def fitted(names: Mapping[str, str], kind: str | None) -> Mapping[str, str]:
        layers = [layer for layer, each in enumerate(kinds) if each == kind]
        return _spelled_as_stored(names, others, layers, stored)

    by_kind = {kind: fitted(names, kind) for kind, names in config.names_by_kind.items()}
    return replace(config, names=fitted(config.names, None), names_by_kind=by_kind)


def _spelled_as_stored(
    names: Mapping[str, str],
    others: Mapping[str, str],
    layers: Sequence[int],
    stored: Collection[str],
) -> Mapping[str, str]:
    """Spell the names of modules of some layers as files have them."""

    def is_stored(name: str) -> bool:
        return any(f"{names['layers']}.{layer}.{name}.weight" in stored for layer in layers)

    def spelled(name: str) -> str:
        other = others.get(name, name)
        return other if is_stored(other) and not is_stored(name) else name

    return {key: " ".join(map(spelled, stated.split())) for key, stated in names.items()}


def _with_stacked_experts(config: ModelConfig, stored: Collection[str]) -> ModelConfig:
    """Use the names of one tensor of all experts, if that is stored."""
    names = config.names
    experts = [layer for layer, plan in enumerate(config.layer_plans) if plan.experts is not None]
    if not experts or "*" not in names.get("experts_down", ""):
        return config
    prefix = names["experts_down"].partition(".*.")[0]
    down = f"{prefix}.down_proj"
    if f"{names['layers']}.{experts[0]}.{down}" not in stored:
        return config
    stacked = {"experts_gate_up": f"{prefix}.gate_up_proj", "experts_down": down}
    return replace(config, names={**names, **stacked})
