"""Read the settings of ``compressed-tensors``: groups of integers or float8, and their modules."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from asyncgen.checkpoints.packed import part_shapes, schemes
from asyncgen.checkpoints.packed.file_expressions import FileExpressions
from asyncgen.checkpoints.packed.layouts import FLOATS, WORDS, Layout, Scheme, float8_scheme
from asyncgen.checkpoints.packed.stated_settings import UnknownSettingError
from asyncgen.errors import clip, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.checkpoints.packed.layouts import Parts
    from asyncgen.checkpoints.packed.stated_settings import Settings

    SchemeOf = Callable[[Parts], Scheme]

_MIXED: Final = "mixed-precision"
_FORMS: Final = (
    "int-quantized",
    "pack-quantized",
    "naive-quantized",
    "float-quantized",
    "dense",
)

_EVERY: Final = "Linear"
"""The class of all modules that are quantised."""

_MADE_BY_COMPRESSED: Final = frozenset(
    """
    quant_method dequantize global_compression_ratio ignore kv_cache_scheme run_compressed
    use_optimized_inference version
    """.split()
)

_GROUP_NOTES: Final = frozenset({"input_activations", "output_activations"})
_WEIGHT_NOTES: Final = frozenset({"observer", "observer_kwargs", "scale_dtype", "zp_dtype"})


def compressed(settings: Settings, tensors: Parts) -> Layout:
    """Read the settings of ``compressed-tensors``: one group, or several by their targets."""
    form = settings.choice("format", (*_FORMS, _MIXED), "dense")
    settings.choice("quantization_status", ("initialized", "calibration", "frozen", "compressed"))
    sparsity = settings.below("sparsity_config")
    sparsity.choice("format", ("dense",))
    sparsity.finish(("ignore", "targets", "registry_requires_subclass", "sparsity_structure"))
    groups = settings.below("config_groups")
    if not groups.all():
        settings.refuse("config_groups", "there must be one")
    found: dict[str, tuple[SchemeOf, list[str]]] = {}
    for name in groups.all():
        group = groups.below(name)
        group.choice("format", _FORMS if form == _MIXED else (form,))
        if group.get("weights") is None:
            settings.refuse("config_groups", "a group without weights is not supported")
        targets = group.get("targets", [_EVERY])
        if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
            group.refuse("targets", "it must be a list of texts")
        found[name] = _scheme(group.below("weights")), targets
        group.finish(_GROUP_NOTES)
    settings.finish(_MADE_BY_COMPRESSED)
    if len(found) == 1:
        ((scheme, _),) = found.values()
        return Layout("weight_scale", lambda stem, parts: scheme(parts))
    group_of = _group_finder({name: targets for name, (_, targets) in found.items()})
    return Layout("weight_scale", lambda stem, parts: found[group_of(stem)][0](parts))


def _group_finder(targets: Mapping[str, list[str]]) -> Callable[[str], str]:
    """Return a function that finds a module's group: by its name, an expression, or its class.

    Args:
        targets: Those of each group. Behind ``re:`` stands an expression of a name's beginning.
    """
    by_target: dict[str, list[str]] = {}
    for name, each in targets.items():
        for target in dict.fromkeys(each):
            by_target.setdefault(target, []).append(name)
    texts = {one: one.removeprefix("re:") for one in by_target if one.startswith("re:")}
    expressions = FileExpressions(texts.values(), "targets")

    def find(module: str) -> str:
        matching = (
            name
            for target, text in texts.items()
            if expressions.match(text, module)
            for name in by_target[target]
        )
        ways = by_target.get(module, []), matching, by_target.get(_EVERY, [])
        for found in ways:
            groups = list(dict.fromkeys(found))
            if len(groups) > 1:
                listed = shorten(groups)
                raise UnknownSettingError(f"`config_groups` has {listed} for `{clip(module, 200)}`")
            if groups:
                return groups[0]
        raise UnknownSettingError(f"`config_groups` has no target for `{clip(module, 200)}`")

    return find


def _scheme(weights: Settings) -> SchemeOf:
    kind = weights.choice("type", ("int", "float"), "int")
    bits = weights.choice("num_bits", (8,) if kind == "float" else (4, 8), 8)
    size = weights.size("group_size", -1)
    weights.choice("dynamic", (False,))
    block = weights.block("block_structure", as_text=True)
    strategies = ("tensor", "channel", "group", "block")
    allowed = strategies if kind == "float" else strategies[:3]
    strategy = weights.choice("strategy", allowed, "tensor" if size is None else "group")
    if strategy == "group" and size is None:
        weights.refuse("group_size", "the strategy 'group' needs it")
    if strategy == "block" and block is None:
        weights.refuse("block_structure", "the strategy 'block' needs it")
    is_symmetric = weights.choice("symmetric", (True, False))
    order = weights.choice("actorder", ("group", "weight", "dynamic", "static", True, False))
    weights.finish(_WEIGHT_NOTES)
    if kind == "float":
        if is_symmetric is False:
            weights.refuse("symmetric", "float8 has no zero points")
        by_strategy = {"group": (1, size), "block": block}
        floats = float8_scheme("weight_scale", [by_strategy.get(strategy)])
        return lambda parts: floats
    size = size if strategy == "group" else None
    read = partial(schemes.compressed_integers, bits=bits, size=size, is_symmetric=is_symmetric)

    def of(parts: Parts) -> Scheme:
        is_packed = "weight_packed" in parts
        numbers = {"weight_packed": WORDS} if is_packed else {"weight": ("I8",)}
        extra: dict[str, tuple[str, ...]] = {"weight_shape": ("I64", "I32")} if is_packed else {}
        if is_symmetric is False:
            extra["weight_zero_point"] = ("I8", "I32")
        if order in ("group", "dynamic", True):
            extra["weight_g_idx"] = ("I32", "I64")
        return Scheme(
            read=read,
            shapes=partial(part_shapes.compressed_integers, bits=bits, size=size),
            needed={**numbers, "weight_scale": FLOATS, **extra},
            others={"weight_zero_point": ("I8", "I32"), "weight_g_idx": ("I32", "I64")},
            bits=bits,
            size=size,
            scales="weight_scale",
            zeros="weight_zero_point",
        )

    return of
