"""Weight rules of mixers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from asyncgen.families.plans.convolution_plan import ConvolutionPlan
from asyncgen.families.plans.delta_plan import DeltaPlan
from asyncgen.families.plans.griffin_plan import GriffinPlan
from asyncgen.families.plans.lightning_plan import LightningPlan
from asyncgen.families.plans.state_plan import StatePlan
from asyncgen.models.mixers.griffin import griffin_rules
from asyncgen.models.mixers.lightning import lightning_rules
from asyncgen.models.weight_map import WeightRule, module_rules, tensor_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.state_plan import MixerPlan


def mixer_rules(config: ModelConfig, index: int, plan: MixerPlan) -> list[WeightRule]:
    """Give the rules of a layer's mixer.

    Args:
        config: Description of the network.
        index: Number of the layer.
        plan: Its mixer.
    """
    target = f"layers.{index}.mixer"
    names = config.names_of(index)
    stored = f"{names['layers']}.{index}.{names['mixer']}"
    hidden = config.hidden_size
    return _RULES[type(plan)](target, stored, hidden, plan)


def _delta_rules(target: str, stored: str, hidden: int, plan: DeltaPlan) -> list[WeightRule]:
    """Give the rules of the gated delta rule."""
    heads, width = plan.heads, plan.convolved
    if plan.storing == "apart":
        return _delta_rules_apart(target, stored, hidden, plan)
    if plan.storing == "joined":
        joined = ["in_proj_qkvz", "in_proj_ba"], [width + plan.channels, 2 * heads]
        order = joined_order(plan)
    else:
        order = None
        joined = (
            ["in_proj_qkv", "in_proj_b", "in_proj_a", "in_proj_z"],
            [width, heads, heads, plan.channels],
        )
    sources = [f"{stored}.{name}" for name in joined[0]]
    rules = module_rules(f"{target}.enter", sources, joined[1], hidden, order=order)
    for ours, theirs, shape in (
        ("window", "conv1d.weight", (width, 1, plan.window)),
        ("decay", "A_log", (heads,)),
        ("steps_bias", "dt_bias", (heads,)),
    ):
        rules.append(tensor_rule(f"{target}.{ours}", f"{stored}.{theirs}", *shape))
    rules += module_rules(f"{target}.norm", [f"{stored}.norm"], [plan.values])
    return rules + module_rules(f"{target}.leave", [f"{stored}.out_proj"], [hidden], plan.channels)


def _delta_rules_apart(target: str, stored: str, hidden: int, plan: DeltaPlan) -> list[WeightRule]:
    """Give the same rules for files that have a matrix of each part."""
    width, heads = plan.key_heads * plan.keys, plan.heads
    sides = {"q": width, "k": width, "v": plan.channels}

    def product(ours: str, parts: Mapping[str, int], columns: int = hidden) -> list[WeightRule]:
        sources = [f"{stored}.{part}_proj" for part in parts]
        return module_rules(f"{target}.{ours}", sources, list(parts.values()), columns)

    def exact(ours: str, theirs: str, *shape: int) -> WeightRule:
        return tensor_rule(f"{target}.{ours}", f"{stored}.{theirs}", *shape)

    behind = {"f_a": plan.rank, "g_a": plan.rank}
    behind = behind if plan.rank else {"a": heads, "g": plan.channels}
    rules = product("enter", {**sides, "b": heads, **behind})
    convolutions = tuple(f"{stored}.{side}_conv1d.weight" for side in sides)
    shapes = tuple((rows, 1, plan.window) for rows in sides.values())
    # The reference saves three parts of one size, though the three weights differ in size.
    rules.append(WeightRule(f"{target}.window.weight", convolutions, shapes, is_cut_anyhow=True))
    if plan.rank:
        rules += product("decays", {"f_b": plan.decays}, plan.rank)
        rules += product("gates", {"g_b": plan.channels}, plan.rank)
    rules.append(exact("decay", "A_log", *((1, 1, heads, 1) if plan.rank else (heads,))))
    rules.append(exact("steps_bias", "dt_bias", plan.decays))
    rules += module_rules(f"{target}.norm", [f"{stored}.o_norm"], [plan.values])
    return rules + product("leave", {"o": hidden}, plan.channels)


@lru_cache(maxsize=4)
def joined_order(plan: DeltaPlan) -> tuple[int, ...]:
    """Map our rows (queries, keys, values, rates, steps, gates of all heads) to the rows of the
    files' two matrices, which go by head of keys."""
    each, keys, heads = plan.heads // plan.key_heads, plan.keys, range(plan.key_heads)
    values = each * plan.values
    share, behind = 2 * keys + 2 * values, plan.key_heads * (2 * keys + 2 * values)

    def part(first: int, count: int, start: int, step: int) -> list[int]:
        return [start + head * step + first + row for head in heads for row in range(count)]

    return (
        *part(0, keys, 0, share),
        *part(keys, keys, 0, share),
        *part(2 * keys, values, 0, share),
        *part(0, each, behind, 2 * each),
        *part(each, each, behind, 2 * each),
        *part(2 * keys + values, values, 0, share),
    )


def _convolution_rules(
    target: str, stored: str, hidden: int, plan: ConvolutionPlan
) -> list[WeightRule]:
    """Give the rules of a gated short convolution."""
    width, bias = plan.convolved, plan.has_bias
    sources = [f"{stored}.in_proj"]
    rules = module_rules(f"{target}.enter", sources, [3 * width], hidden, bias=bias)
    rules.append(tensor_rule(f"{target}.window", f"{stored}.conv.weight", width, 1, plan.window))
    if bias:
        rules.append(tensor_rule(f"{target}.window_bias", f"{stored}.conv.bias", width))
    sources = [f"{stored}.out_proj"]
    return rules + module_rules(f"{target}.leave", sources, [hidden], width, bias=bias)


def _mamba_rules(target: str, stored: str, hidden: int, plan: StatePlan) -> list[WeightRule]:
    """Give the rules of Mamba and Mamba 2."""
    rank, size, bias = plan.rank, plan.size, plan.has_bias

    def exact(ours: str, theirs: str, *shape: int) -> WeightRule:
        return tensor_rule(f"{target}.{ours}", f"{stored}.{theirs}", *shape)

    def product(ours: str, theirs: str, rows: int, columns: int, bias: bool) -> list[WeightRule]:
        return module_rules(f"{target}.{ours}", [f"{stored}.{theirs}"], [rows], columns, bias=bias)

    is_dual = plan.kind == "dual"
    wide = plan.channels + plan.convolved + plan.heads if is_dual else 2 * plan.channels
    rules = product("enter", "in_proj", wide, hidden, bias)
    rules.append(exact("window", "conv1d.weight", plan.convolved, 1, plan.window))
    if plan.has_window_bias:
        rules.append(exact("window_bias", "conv1d.bias", plan.convolved))
    if is_dual:
        rules.append(exact("decay", "A_log", plan.heads))
        rules.append(exact("steps_bias", "dt_bias", plan.heads))
        if plan.eps is not None:
            rules += module_rules(f"{target}.norm", [f"{stored}.norm"], [plan.channels])
    else:
        rules.append(exact("decay", "A_log", plan.channels, size))
        rules += product("select", "x_proj", rank + 2 * size, plan.channels, bias=False)
        rules += product("steps", "dt_proj", plan.channels, rank, bias=False)
        rules.append(exact("steps_bias", "dt_proj.bias", plan.channels))
        if plan.has_norm_weights:
            for ours, theirs, width in (
                ("steps", "dt", rank),
                ("enter", "b", size),
                ("leave", "c", size),
            ):
                norm = f"{stored}.{theirs}_layernorm"
                rules += module_rules(f"{target}.{ours}_norm", [norm], [width])
    rules.append(exact("skip", "D", plan.heads))
    return rules + product("leave", "out_proj", hidden, plan.channels, plan.has_leave_bias)


_RULES: dict[type, Callable[[str, str, int, Any], list[WeightRule]]] = {
    ConvolutionPlan: _convolution_rules,
    DeltaPlan: _delta_rules,
    GriffinPlan: griffin_rules,
    LightningPlan: lightning_rules,
    StatePlan: _mamba_rules,
}
