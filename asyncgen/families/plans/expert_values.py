"""Read the experts of a feed-forward from a file's values. This module imports no torch."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from asyncgen.families.plans.config_values import MOST_LAYERS
from asyncgen.families.plans.declaration import LLAMA_NAMES, Setting, settled
from asyncgen.families.plans.experts_plan import MOST_EXPERTS, ExpertsPlan, GatePlan, Routing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.families.plans.config_values import ConfigValues

EXPERT_NAMES: Mapping[str, str] = {
    **LLAMA_NAMES,
    "router": "mlp.gate",
    "experts_gate_up": "mlp.experts.*.gate_proj mlp.experts.*.up_proj",
    "experts_down": "mlp.experts.*.down_proj",
    "correction": "mlp.gate.e_score_correction_bias",
    "shared_gate_up": "mlp.shared_experts.gate_proj mlp.shared_experts.up_proj",
    "shared_down": "mlp.shared_experts.down_proj",
}
"""Names of Qwen's, OLMo's and DeepSeek's weights: ``*`` is each expert."""

MIXTRAL_NAMES: Mapping[str, str] = {
    **LLAMA_NAMES,
    "router": "block_sparse_moe.gate",
    "experts_gate_up": "block_sparse_moe.experts.*.w1 block_sparse_moe.experts.*.w3",
    "experts_down": "block_sparse_moe.experts.*.w2",
}
"""Names of Mixtral's weights."""


_Gate: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
_GATES: Mapping[str, _Gate] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Gate of an expert, by its activation."""
_PLAIN: Mapping[str, _Gate] = {**_GATES, "relu": "relu", "relu2": "relu2"}
"""The same for experts without a gate."""

_ROUTING = [field.name for field in fields(Routing)]


def experts_plan(
    values: ConfigValues,
    *,
    width: str = "moe_intermediate_size",
    is_gated: bool = True,
    **options: Setting[Any],
) -> ExpertsPlan:
    """Read ``num_experts``, ``num_experts_per_tok`` and the width of an expert.

    Args:
        values: The file's values.
        width: Key of the width.
        is_gated: True if experts have gates.
        **options: Other fields of `Routing` and of `ExpertsPlan`, as settings of the family.
    """
    routing = {name: settled(options.pop(name), values) for name in _ROUTING if name in options}
    experts = values.count("num_experts", most=MOST_EXPERTS)
    plan = Routing(values.count("num_experts_per_tok"), **routing)
    allowed = experts // plan.groups * plan.chosen_groups
    if plan.chosen > allowed:
        key = "num_experts_per_tok"
        raise values.bad(key, plan.chosen, f"only {allowed} experts can be chosen")
    act = values.activation()
    known = _GATES if is_gated else _PLAIN
    if act not in known:
        raise values.bad("hidden_act", act, f"experts have one of {', '.join(known)}")
    gate = GatePlan(known[act], is_gated=is_gated)
    made = ExpertsPlan(experts, values.count(width), plan, gate)
    return replace(made, **{name: settled(option, values) for name, option in options.items()})


def declare_experts(**options: Any) -> Callable[..., ExpertsPlan]:
    """Declare the same experts for all layers; options are those of `experts_plan`."""
    return lambda values, *layer: experts_plan(values, **options)


def grouped_plan(values: ConfigValues, *, is_gated: bool = True) -> ExpertsPlan:
    """Read DeepSeek-V3's experts: groups, a sigmoid, a correction of scores, shared experts."""
    values.require("scoring_func", "sigmoid", "noaux_tc")  # dots.llm1's spelling
    values.require("topk_method", "noaux_tc")
    groups, chosen_groups = _groups(values)
    return experts_plan(
        values,
        is_gated=is_gated,
        scoring="sigmoid",
        is_normalised=values.flag("norm_topk_prob"),
        scale=values.positive("routed_scaling_factor", 1.0),
        groups=groups,
        chosen_groups=chosen_groups,
        best_of_group=2,
        is_corrected=True,
        shared_width=shared_width("n_shared_experts"),
    )


def softmax_groups_plan(values: ConfigValues) -> ExpertsPlan:
    """Read DeepSeek-V2's experts: a softmax, the best groups if the file says so, shared
    experts."""
    method = values.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    groups, chosen_groups = (1, 1) if method == "greedy" else _groups(values)
    return experts_plan(
        values,
        scale=values.positive("routed_scaling_factor", 1.0),
        groups=groups,
        chosen_groups=chosen_groups,
        shared_width=shared_width("n_shared_experts"),
    )


def softmax_best_groups_plan(values: ConfigValues) -> ExpertsPlan:
    """Read Mistral 4's experts: a softmax, groups worth their two best, shared experts."""
    groups, chosen_groups = _groups(values)
    return experts_plan(
        values,
        is_normalised=values.flag("norm_topk_prob"),
        scale=values.positive("routed_scaling_factor", 1.0),
        groups=groups,
        chosen_groups=chosen_groups,
        best_of_group=2,
        shared_width=shared_width("n_shared_experts"),
    )


def _groups(values: ConfigValues) -> tuple[int, int]:
    """Read the groups of experts, and the number of groups that a token's are chosen from."""
    experts = values.count("num_experts", most=MOST_EXPERTS)
    groups = values.count("n_group", default=1)
    chosen_groups = values.count("topk_group", default=groups)
    if experts % groups:
        raise values.bad("n_group", groups, f"must divide the {experts} experts")
    if chosen_groups > groups:
        raise values.bad("topk_group", chosen_groups, f"there are {groups} groups")
    return groups, chosen_groups


def shared_width(key: str) -> Callable[[ConfigValues], int]:
    """Give the width of all shared experts together; a key of the file says how many there are."""
    return lambda values: (
        values.whole(key, most=MOST_EXPERTS) * values.count("moe_intermediate_size")
    )


def dense_before(
    plan: Callable[[ConfigValues], ExpertsPlan], key: str = "first_k_dense_replace"
) -> Callable[[ConfigValues, int], ExpertsPlan | None]:
    """Put experts in every layer from one on, whose number stands under a key."""

    def experts(values: ConfigValues, layer: int) -> ExpertsPlan | None:
        return plan(values) if layer >= values.whole(key) else None

    return experts


def as_listed(
    plan: Callable[[ConfigValues], ExpertsPlan],
    otherwise: Callable[[ConfigValues, int], ExpertsPlan | None],
) -> Callable[[ConfigValues, int], ExpertsPlan | None]:
    """Put experts in the layers that ``mlp_layer_types`` calls sparse, if the file lists them."""

    def experts(values: ConfigValues, layer: int) -> ExpertsPlan | None:
        layers = values.count("num_hidden_layers", most=MOST_LAYERS)
        allowed = ("dense", "sparse")
        kinds = values.listed(
            "mlp_layer_types", layers, lambda kind: kind in allowed, "dense or sparse"
        )
        if kinds is None:
            return otherwise(values, layer)
        return plan(values) if kinds[layer] == "sparse" else None

    return experts


def sparse_steps(
    plan: Callable[[ConfigValues], ExpertsPlan],
) -> Callable[[ConfigValues, int], ExpertsPlan | None]:
    """Put experts in each n-th layer, but not in those that a list names, as Qwen does."""

    def experts(values: ConfigValues, layer: int) -> ExpertsPlan | None:
        def read(stated: object) -> frozenset[int]:
            dense = stated or []
            if not isinstance(dense, (list, tuple)) or any(type(one) is not int for one in dense):
                raise values.bad("mlp_only_layers", dense, "must be a list of layers")
            if len(dense) > values.count("num_hidden_layers", most=MOST_LAYERS):
                raise values.bad("mlp_only_layers", dense, "names more layers than there are")
            return frozenset(dense)

        step = values.count("decoder_sparse_step", default=1)
        dense = values.once("mlp_only_layers", read)
        return None if layer in dense or (layer + 1) % step else plan(values)

    return experts
