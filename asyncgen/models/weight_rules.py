"""Weight rules of a decoder: the sources of each parameter, by the names of a family's files.

Heads whose rotated pairs are adjacent, or that rotate in part, become halves here: rows of queries
and keys are put in another order, the same for both, which changes no product of theirs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from asyncgen.models.activations import XIELU_PARAMETERS
from asyncgen.models.altup import altup_rules, stream_rules
from asyncgen.models.differential import differential_rules
from asyncgen.models.expert_rules import expert_rules
from asyncgen.models.latent import latent_rules
from asyncgen.models.layer_inputs import input_rules
from asyncgen.models.mixers.mixer_rules import mixer_rules
from asyncgen.models.mixers.shared_block import block_rules, shared_layer_rules
from asyncgen.models.varied_layer import varied_rules
from asyncgen.models.weight_map import WeightRule, module_rules, tensor_rule

if TYPE_CHECKING:
    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.declaration import Family
    from asyncgen.families.plans.layer_plan import HeadNormPlan, NormPlan


def weight_rules(config: ModelConfig, family: Family) -> tuple[WeightRule, ...]:
    """Give the rules of all parameters, in the order of computation.

    Args:
        config: Description of the network.
        family: Its family.
    """
    names, hidden, norm = config.names, config.hidden_size, config.layer_plans[0].norm
    table = [config.vocab_size], hidden
    rules = module_rules("embed_tokens", [names["embed_tokens"]], *table)
    if config.stream.positions == "table":
        assert config.position_limit is not None
        places = config.position_limit + config.stream.position_offset
        rules += module_rules("embed_positions", [names["embed_positions"]], [places], hidden)
    if "embed_norm" in names:
        rules += _norm_rules("embed_norm", [names["embed_norm"]], (hidden,), norm)
    if config.stream.layer_inputs:
        rules += input_rules(config)
    if config.stream.streams > 1:
        rules += stream_rules(config)
    rules += block_rules(config)
    for index in range(config.num_hidden_layers):
        if config.stream.streams > 1:
            rules += altup_rules(config, index)
        elif config.layer_plans[index].varied is not None:
            rules += varied_rules(config, index)
        else:
            rules += _layer_rules(config, family, index)
    if "norm" in names:
        rules += _norm_rules("norm", [names["norm"]], (hidden,), norm)
    head = module_rules("lm_head", [names["lm_head"]], *table, bias=config.stream.has_head_bias)
    rules += head[1:] if config.tie_word_embeddings else head  # the bias is its own
    return tuple(rules)


def head_order(config: ModelConfig, index: int) -> tuple[int, ...] | None:
    """Map the features of our heads to the stored ones; ``None``: the same order."""
    rope = config.ropes[index] if config.ropes else config.rope
    size = config.head_dim
    if rope.rope_type == "none":
        return None
    rotated, plan = 2 * rope.pairs(size), config.layer_plans[index]
    if rotated == size and not (plan.is_interleaved or plan.is_backward):
        return None
    rest = (size - rotated) // 2
    if plan.is_interleaved:
        first, second = range(0, rotated, 2), range(1, rotated, 2)
    else:
        first, second = range(rotated // 2), range(rotated // 2, rotated)
    if plan.is_backward:
        first, second = second, first
    return (*first, *range(rotated, rotated + rest), *second, *range(rotated + rest, size))


@lru_cache(maxsize=8)
def qkv_order(
    heads: int,
    kv_heads: int,
    size: int,
    groups: int,
    parts: str,
    order: tuple[int, ...] | None,
    values: int | None = None,
) -> tuple[int, ...] | None:
    """Map our rows of queries, keys and values to the files' rows; ``None``: the same order.

    Args:
        heads: Query heads.
        kv_heads: Key and value heads.
        size: Size of a head.
        groups: See `LayerPlan`.
        parts: See `LayerPlan`.
        order: Order of the features of a head of queries or keys.
        values: Size of a value, if it is another.
    """
    counts = {"q": heads, "k": kv_heads, "v": kv_heads}
    inside = {"q": order, "k": order, "v": None}
    sizes = {"q": size, "k": size, "v": values or size}
    share = sum(counts[part] // groups * sizes[part] for part in "qkv")
    rows: list[int] = []
    for part in "qkv":
        count = counts[part] // groups
        others = parts[: parts.index(part)]
        ahead = sum(counts[other] // groups * sizes[other] for other in others)
        for head in range(counts[part]):
            start = head // count * share + ahead + head % count * sizes[part]
            rows += [start + feature for feature in inside[part] or range(sizes[part])]
    return None if rows == list(range(len(rows))) else tuple(rows)


@lru_cache(maxsize=8)
def gated_order(
    heads: int, kv_heads: int, size: int, order: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Map our rows of queries, keys, values and gates to those of files whose gates lie behind
    each query head; arguments are those of `qkv_order`."""
    inside = order or tuple(range(size))
    keys, values = 2 * heads * size, (2 * heads + kv_heads) * size
    return (
        *(2 * head * size + row for head in range(heads) for row in inside),
        *(keys + head * size + row for head in range(kv_heads) for row in inside),
        *range(values, values + kv_heads * size),
        *((2 * head + 1) * size + row for head in range(heads) for row in range(size)),
    )


def _sources(config: ModelConfig, index: int, ours: str) -> list[str]:
    """List the files' names of a module of a layer, or of the modules that are joined in it."""
    names = config.names_of(index)
    return [f"{names['layers']}.{index}.{name}" for name in names[ours].split()]


def _product_rules(
    config: ModelConfig,
    family: Family,
    index: int,
    ours: str,
    rows: list[int],
    columns: int,
    bias: bool,
    order: tuple[int, ...] | None = None,
) -> list[WeightRule]:
    """Give the rules of a product of a layer, of one or several matrices."""
    stored = _sources(config, index, ours)
    rows = rows if len(stored) > 1 else [sum(rows)]
    target, across = f"layers.{index}.{ours}", family.is_transposed
    return module_rules(target, stored, rows, columns, bias=bias, transposed=across, order=order)


def _layer_rules(config: ModelConfig, family: Family, index: int) -> list[WeightRule]:
    plan, names = config.layer_plans[index], config.names_of(index)
    hidden, width = config.hidden_size, config.intermediate_size
    rules: list[WeightRule] = []

    def norm(ours: str, features: int = hidden) -> None:
        if ours in names:
            target, stored = f"layers.{index}.{ours}", _sources(config, index, ours)
            rules.extend(_norm_rules(target, stored, (features,), plan.norm))

    def product(ours: str, rows: list[int], columns: int, bias: bool) -> None:
        rules.extend(_product_rules(config, family, index, ours, rows, columns, bias))

    norm("input_norm")
    if plan.mixer is not None:
        rules += mixer_rules(config, index, plan.mixer)
    if plan.shared_block is not None:
        return rules + shared_layer_rules(config, index, plan.shared_block)
    if plan.has_attention:
        rules += _attention_rules(config, family, index)
    for ours in ("output_norm", "post_norm", "down_norm"):
        norm(ours)
    if plan.has_attention:
        norm("attended_norm", config.num_attention_heads * config.head_dim)
    if not plan.has_feed_forward:
        return rules
    if plan.experts is not None:
        return rules + expert_rules(config, index, plan.experts)
    if plan.is_gated:
        product("gate_up", [width, width], hidden, plan.has_up_bias)
    else:
        product("up", [width], hidden, plan.has_up_bias)
    if "shape" in names:
        (shape_of,) = _sources(config, index, "shape")
        rules += [
            WeightRule(f"layers.{index}.shape.{kind}", (f"{shape_of}.{kind}",), (shape,))
            for kind, shape in XIELU_PARAMETERS.items()
        ]
    norm("inner_norm", width)
    product("down", [hidden], width, plan.has_down_bias)
    return rules


def _attention_rules(config: ModelConfig, family: Family, index: int) -> list[WeightRule]:
    plan, hidden, size = config.layer_plans[index], config.hidden_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    narrow = size
    if plan.heads is not None:
        kv_heads, narrow = plan.heads.kv_heads, plan.heads.values
    rules: list[WeightRule] = []
    is_plain = plan.latent is None and not plan.is_differential
    order = head_order(config, index) if is_plain else None

    def product(
        ours: str, rows: list[int], columns: int, bias: bool, order: tuple[int, ...] | None = None
    ) -> None:
        rules.extend(_product_rules(config, family, index, ours, rows, columns, bias, order))

    if plan.latent is not None:
        rules += latent_rules(config, index, plan.latent)
        narrow = plan.latent.values
    elif plan.is_differential:
        rules += differential_rules(config, index)
        narrow = size // 2
    elif plan.gates_in_queries:
        gated = gated_order(heads, kv_heads, size, order)
        rows = [2 * heads * size, kv_heads * size, kv_heads * size]
        product("qkv", rows, hidden, plan.has_qkv_bias, gated)
    else:
        grouping = plan.qkv_groups, plan.qkv_order
        moved = qkv_order(heads, kv_heads, size, *grouping, order, narrow)
        rows = [heads * size, kv_heads * size, kv_heads * narrow]
        product("qkv", rows, hidden, plan.has_qkv_bias, moved)
    if plan.head_norm is not None:
        for ours, count in (("q_norm", heads), ("k_norm", kv_heads)):
            target, stored = f"layers.{index}.{ours}", _sources(config, index, ours)
            rules += _head_norm_rules(plan.head_norm, target, stored, count, size, order)
    if plan.has_gate:
        gates = heads if plan.gates_heads else heads * narrow
        product("attention_gate", [gates], hidden, False)
    product("output", [hidden], heads * narrow, plan.has_output_bias)
    if config.attention[index].has_sinks:
        (sinks,) = _sources(config, index, "sinks")
        rules.append(tensor_rule(f"layers.{index}.sinks", sinks, heads))
    return rules


def _head_norm_rules(
    head_norm: HeadNormPlan,
    target: str,
    sources: list[str],
    count: int,
    size: int,
    order: tuple[int, ...] | None,
) -> list[WeightRule]:
    """Give the rules of the norm of so many heads of a size."""
    if head_norm.span == "head":
        return _norm_rules(target, sources, (size,), head_norm.norm, order)
    every = None
    if order is not None:
        every = tuple(head * size + feature for head in range(count) for feature in order)
    if "*" in sources[0]:
        single = [sources[0].replace("*", str(head)) for head in range(count)]
        return _norm_rules(target, single, (size,), head_norm.norm, every)
    shape = (count * size,) if head_norm.span == "width" else (count, size)
    return _norm_rules(target, sources, shape, head_norm.norm, every)


def _norm_rules(
    target: str,
    sources: list[str],
    shape: tuple[int, ...],
    norm: NormPlan,
    order: tuple[int, ...] | None = None,
) -> list[WeightRule]:
    kinds = [("weight", norm.has_weight), ("bias", norm.has_bias)]
    return [
        WeightRule(
            f"{target}.{kind}",
            tuple(f"{name}.{kind}" for name in sources),
            (shape,) * len(sources),
            order=order,
        )
        for kind, is_there in kinds
        if is_there
    ]
