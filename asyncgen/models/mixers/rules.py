"""What the parameters of a block with a mixer are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.weight_map import WeightRule, module_rules

if TYPE_CHECKING:
    from asyncgen.models.config import ModelConfig
    from asyncgen.models.family.states import StatePlan


def mixer_rules(config: ModelConfig, index: int, plan: StatePlan) -> list[WeightRule]:
    """The rules of a block's mixer.

    Args:
        config: The network.
        index: Which layer it is.
        plan: Its mixer.
    """
    names, hidden = config.names, config.hidden_size
    target = f"layers.{index}.mixer"
    stored = f"{names['layers']}.{index}.{names['mixer']}"
    rank, size, bias = plan.rank, plan.size, plan.has_bias

    def exact(ours: str, theirs: str, *shape: int) -> WeightRule:
        return WeightRule(f"{target}.{ours}.weight", (f"{stored}.{theirs}",), (shape,))

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
        rules += module_rules(f"{target}.norm", [f"{stored}.norm"], [plan.channels])
    else:
        rules.append(exact("decay", "A_log", plan.channels, size))
        rules += product("select", "x_proj", rank + 2 * size, plan.channels, bias=False)
        rules += product("steps", "dt_proj", plan.channels, rank, bias=False)
        rules.append(exact("steps_bias", "dt_proj.bias", plan.channels))
    rules.append(exact("skip", "D", plan.heads))
    return rules + product("leave", "out_proj", hidden, plan.channels, bias)
