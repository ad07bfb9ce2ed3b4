"""What the parameters of experts are made of: one tensor an expert, or one of all of them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from asyncgen.weight_map import WeightRule, module_rules

if TYPE_CHECKING:
    from asyncgen.models.config import ModelConfig
    from asyncgen.models.family.experts import ExpertsPlan


def expert_rules(config: ModelConfig, index: int, plan: ExpertsPlan) -> list[WeightRule]:
    """The rules of a layer's experts.

    Args:
        config: The network.
        index: Number of the layer.
        plan: Its experts.
    """
    names, hidden, width = config.names, config.hidden_size, plan.width
    target = f"layers.{index}.experts"

    def sources(ours: str) -> list[str]:
        return [f"{names['layers']}.{index}.{name}" for name in names[ours].split()]

    routers, rows = sources("router"), [plan.experts]
    if plan.is_shared_gated:
        routers, rows = routers + sources("shared_gate"), [plan.experts, 1]
    rules = module_rules(f"{target}.router", routers, rows, hidden, bias=plan.has_router_bias)
    if plan.is_corrected:
        shape = (1, plan.experts) if plan.has_row_of_corrections else (plan.experts,)
        rules.append(
            WeightRule(f"{target}.correction.weight", tuple(sources("correction")), (shape,))
        )
    for ours, outputs, inputs in (("gate_up", 2 * width, hidden), ("down", hidden, width)):
        found = sources(f"experts_{ours}")
        if "*" in names[f"experts_{ours}"]:
            each = [
                name.replace("*", str(number)) for number in range(plan.experts) for name in found
            ]
            share = [outputs // len(found)] * len(each)
            rules += module_rules(f"{target}.{ours}", each, share, inputs, bias=plan.has_bias)
        else:
            rules += _stacked(plan, f"{target}.{ours}", found[0], outputs, inputs)
    if plan.shared_width:
        shared = plan.shared_width
        rules += module_rules(
            f"{target}.shared_gate_up", sources("shared_gate_up"), [shared, shared], hidden
        )
        rules += module_rules(f"{target}.shared_down", sources("shared_down"), [hidden], shared)
    return rules


def _stacked(
    plan: ExpertsPlan, target: str, source: str, outputs: int, inputs: int
) -> list[WeightRule]:
    """The rules of a tensor ``[experts, out, in]``, or of one with ``[in, out]``."""
    order = None
    if plan.takes_turns and target.endswith("gate_up"):
        order = _turns(plan.experts, outputs)
    shape = (plan.experts, inputs, outputs) if plan.takes_turns else (plan.experts, outputs, inputs)
    weight = WeightRule(f"{target}.weight", (source,), (shape,), plan.takes_turns, order)
    if not plan.has_bias:
        return [weight]
    biases = WeightRule(
        f"{target}.bias", (f"{source}_bias",), ((plan.experts, outputs),), order=order
    )
    return [weight, biases]


@lru_cache(maxsize=4)
def _turns(experts: int, outputs: int) -> tuple[int, ...]:
    """Which row of the files' each of ours is: all of a gate, then all that it lets through."""
    each = (*range(0, outputs, 2), *range(1, outputs, 2))
    return tuple(first * outputs + row for first in range(experts) for row in each)
