"""Weight rules of experts: files have one tensor for each expert, or one of all of them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from asyncgen.models.weight_map import WeightRule, module_rules, tensor_rule

if TYPE_CHECKING:
    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.experts_plan import ExpertsPlan


def expert_rules(config: ModelConfig, index: int, plan: ExpertsPlan) -> list[WeightRule]:
    """Give the rules of a layer's experts.

    Args:
        config: Description of the network.
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
        (correction,) = sources("correction")
        rules.append(tensor_rule(f"{target}.correction", correction, *shape))
    inner, parts = plan.latent or hidden, plan.gate.parts
    if plan.latent:
        rules += module_rules(f"{target}.enter", sources("experts_enter"), [inner], hidden)
    for ours, outputs, inputs in (("gate_up", parts * width, inner), ("down", inner, width)):
        found = sources(f"experts_{ours}")
        if "*" in names[f"experts_{ours}"]:
            each = [
                name.replace("*", str(number)) for number in range(plan.experts) for name in found
            ]
            share = [outputs // len(found)] * len(each)
            rules += module_rules(f"{target}.{ours}", each, share, inputs, bias=plan.has_bias)
        elif plan.is_flat:
            rules.append(_flat(plan, f"{target}.{ours}", found, outputs, inputs))
        else:
            rules += _stacked(plan, f"{target}.{ours}", found[0], outputs, inputs)
    if plan.latent:
        rules += module_rules(f"{target}.leave", sources("experts_leave"), [hidden], inner)
    if plan.shared_width:
        shared, found = plan.shared_width, sources("shared_gate_up")
        share = [parts * shared // len(found)] * len(found)
        rules += module_rules(f"{target}.shared_gate_up", found, share, hidden)
        rules += module_rules(f"{target}.shared_down", sources("shared_down"), [hidden], shared)
    return rules


def _stacked(
    plan: ExpertsPlan, target: str, source: str, outputs: int, inputs: int
) -> list[WeightRule]:
    """Give the rules of a tensor ``[experts, out, in]``, or ``[experts, in, out]``."""
    order = None
    if plan.takes_turns and target.endswith("gate_up"):
        order = _turns(plan.experts, outputs)
    across = plan.is_transposed
    shape = (plan.experts, inputs, outputs) if across else (plan.experts, outputs, inputs)
    weight = WeightRule(f"{target}.weight", (source,), (shape,), across, order)
    if not plan.has_bias:
        return [weight]
    biases = WeightRule(
        f"{target}.bias", (f"{source}_bias",), ((plan.experts, outputs),), order=order
    )
    return [weight, biases]


def _flat(
    plan: ExpertsPlan, target: str, sources: list[str], outputs: int, inputs: int
) -> WeightRule:
    """Give the rule of a tensor whose matrices lie one below the other, for each projection."""
    if len(sources) == 1:
        shape = (plan.experts * inputs, outputs)
        return WeightRule(f"{target}.weight", tuple(sources), (shape,), True, matrices=plan.experts)
    shape = (plan.experts * outputs // 2, inputs)
    order = _pairs(plan.experts, outputs // 2)
    return WeightRule(f"{target}.weight", tuple(sources), (shape,) * 2, order=order)


@lru_cache(maxsize=4)
def _pairs(experts: int, width: int) -> tuple[int, ...]:
    """Map our rows, gate and up of each expert in turn, to the files' rows: all gates, then all
    ups."""
    firsts = (first + expert * width for expert in range(experts) for first in (0, experts * width))
    return tuple(first + row for first in firsts for row in range(width))


@lru_cache(maxsize=4)
def _turns(experts: int, outputs: int) -> tuple[int, ...]:
    """Map our rows, all of a gate, then all of its up-projection, to the files' alternating
    rows."""
    each = (*range(0, outputs, 2), *range(1, outputs, 2))
    return tuple(first * outputs + row for first in range(experts) for row in each)
