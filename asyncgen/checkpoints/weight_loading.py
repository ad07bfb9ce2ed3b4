"""Load a checkpoint into a model that was built on the meta device.

All checks use the headers, before the first tensor is read. Tensors are then read one target at a
time (`tensor_reader`), so at most one fused matrix exists twice. Knows no architecture; the model's
``weight_map`` does.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.checkpoints.checkpoint import DTYPES, is_floating, list_few
from asyncgen.checkpoints.packed.packing_plan import (
    is_made,
    is_packed,
    log_unpacked,
    packed_size,
    packing_of,
    rounded_rows,
    stays_packed,
)
from asyncgen.checkpoints.packed.quantise import quantise
from asyncgen.checkpoints.tensor_reader import TensorReader, is_finite, tell_broken
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.models.kernels.parameter import Weight
from asyncgen.runtime.device_memory import memory_to_load
from asyncgen.runtime.progress import Progress
from asyncgen.runtime.transfer import host_ints
from asyncgen.runtime.wanted import require_wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from asyncgen.checkpoints.checkpoint import Checkpoint, StoredTensor
    from asyncgen.checkpoints.packed.packing_request import PackingRequest
    from asyncgen.checkpoints.packed.quantise import Codes
    from asyncgen.models.decoder import DecoderLM
    from asyncgen.models.kernels.packed_weight import PackedWeight
    from asyncgen.models.weight_map import WeightRule
    from asyncgen.runtime.progress import ProgressOption


_MODEL_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
}


def resolve_dtype(
    dtype: torch.dtype | str | None, config: Mapping[str, object], checkpoint: Checkpoint
) -> torch.dtype:
    """Decide the dtype of the loaded weights.

    Args:
        dtype: A dtype, its name, or ``"auto"`` (the same as ``None``): that of ``config.json``,
            else that of the first stored floating tensor.
        config: Content of ``config.json``.
        checkpoint: The checkpoint.

    Raises:
        InvalidRequestError: ``dtype`` is not one that a model can run in.
        ModelLoadError: ``"auto"``, and the checkpoint has no dtype.
    """
    if dtype is not None and dtype != "auto":
        return check_dtype(dtype)
    stated = config.get("dtype") or config.get("torch_dtype")
    if stated is not None:
        try:
            return check_dtype(stated)
        except InvalidRequestError as error:
            raise ModelLoadError(
                f"config.json of {checkpoint.folder} asks for dtype {stated!r}; "
                "pass `dtype=` to choose another"
            ) from error
    for tensor in checkpoint.tensors.values():
        if is_floating(tensor.kind):
            return DTYPES[tensor.kind]
    raise ModelLoadError(
        f"neither config.json nor the weights of {checkpoint.folder} tell a dtype; pass `dtype=`"
    )


def load_weights(
    core: DecoderLM,
    checkpoint: Checkpoint,
    *,
    device: torch.device | str = "cpu",
    ignored: Sequence[str] = (),
    rules: Sequence[WeightRule] | None = None,
    progress: ProgressOption = None,
    quantize: PackingRequest | None = None,
) -> None:
    """Fill a model that was built on the meta device.

    All names and shapes are checked first. Then every parameter is read, converted (unless its
    module keeps the stored dtype), moved and assigned, and its module prepared, one module at a
    time, the largest first: the temporary memory of a module is then small beside the modules that
    are not loaded yet.

    Args:
        core: The model, with its ``weight_map``.
        checkpoint: The stored tensors.
        device: Device of the parameters.
        ignored: More regular expressions of stored names that are not needed.
        rules: Rules of parameters for other files than those of ``weight_map``.
        progress: Progress of loading: a bar, nothing, or a function to call.
        quantize: Request to pack matrices while they are read; ``None``: they are not packed.

    Raises:
        ModelLoadError: Weights are missing, unexpected, of another shape or of an unsupported
            dtype, do not fit into free memory, or a file changed while it was read.
    """
    rules = core.weight_map() if rules is None else rules
    is_here = torch.device(device).type == "cpu"
    modules = {rule.target: core.get_submodule(rule.target.rpartition(".")[0]) for rule in rules}
    check_fit(rules, (*core.ignored_weights(), *ignored), checkpoint)
    check_names(rules, checkpoint)
    stored = checkpoint.tensors
    kinds = {
        rule.target: _kind(core, rule, checkpoint) if is_here else core.dtype for rule in rules
    }
    packings = {rule.target: packing_of(modules[rule.target], rule, quantize) for rule in rules}
    rounded = {
        rule.target: rows
        for rule in rules
        if (rows := rounded_rows(modules[rule.target], rule, quantize)) is not None
    }
    kinds |= dict.fromkeys(rounded, core.dtype)  # rounded numbers are not those of the file
    as_stored, table = _kept_table(core, rules, packings, stored) if is_here else (None, None)
    sizes = {
        rule.target: size
        for rule in rules
        if is_here and (size := packed_size(modules[rule.target], rule, packings, stored))
    }
    check_memory(
        rules,
        kinds,
        0 if table is None else table.num_bytes,
        checkpoint,
        dtype=core.dtype,
        device=torch.device(device),
        sizes=sizes,
    )
    if not sizes:
        log_unpacked(packings, stored, core.dtype, device)
    total = sum(stored[source].num_bytes for rule in rules for source in rule.sources)
    if as_stored is not None and table is not None and DTYPES[table.kind] != kinds[as_stored]:
        total += table.num_bytes
    with Progress(total, "loading weights", progress=progress) as bar, TensorReader(bar) as reader:
        for module_name, group in _by_module(rules):
            require_wanted()
            module: Any = core.get_submodule(module_name)
            parts: list[PackedWeight] | None = None
            for rule in group:
                packing = packings[rule.target]
                if is_here and stays_packed(module, rule, [stored[one] for one in rule.sources]):
                    parts = reader.read_packed(rule, checkpoint)
                    continue
                place = "cpu" if packing is not None else device
                tensor = _read(reader, rule, kinds[rule.target], checkpoint, place)
                if packing is not None:
                    packed = _pack(tensor, packing, rule.target, checkpoint)
                    del tensor
                    if is_here and module.packs:
                        parts = [packed]
                        del packed  # `pack` makes a copy of it
                        continue
                    tensor = packed.dequantise().to(kinds[rule.target])
                    del packed
                if rule.target in rounded and quantize is not None:
                    rows, tensor = rounded[rule.target], tensor.to("cpu")
                    packed = _pack(tensor[rows], quantize.codes, rule.target, checkpoint)
                    tensor[rows] = packed.dequantise().to(tensor.dtype)
                    del packed
                name = rule.target.rpartition(".")[2]
                setattr(module, name, Weight(tensor.to(device)))
                # Otherwise this name keeps the original alive while `prepare` makes its copy.
                del tensor
            if parts is not None:
                module.pack(parts)
                del parts
            elif hasattr(module, "prepare"):
                module.prepare()
            if table is not None and group[0].target == as_stored:
                kind, own = DTYPES[table.kind], module.get_parameter("weight").detach()
                core.use_stored(own if kind == own.dtype else reader.join([table], kind))
                del own
    core.prepare()


def _kept_table(
    core: DecoderLM,
    rules: Sequence[WeightRule],
    packings: Mapping[str, Codes | None],
    stored: Mapping[str, StoredTensor],
) -> tuple[str | None, StoredTensor | None]:
    """Return the parameter that is kept in its stored dtype as well, and its stored tensor."""
    sources = {rule.target: [stored[name] for name in rule.sources] for rule in rules}
    target = core.stays_as_stored({name: DTYPES.get(one[0].kind) for name, one in sources.items()})
    if target is None or packings[target] or is_packed(sources[target]):
        return None, None
    return target, sources[target][0]


def _read(
    reader: TensorReader,
    rule: WeightRule,
    kind: torch.dtype,
    checkpoint: Checkpoint,
    device: torch.device | str,
) -> torch.Tensor:
    """Read a parameter to a device; refuse NaN that does not reach the logits."""
    sources = [checkpoint.tensors[source] for source in rule.sources]
    tensor = reader.join(sources, kind, transposed=rule.matrices if rule.transposed else None)
    tensor = in_order(tensor, rule.order).to(device)
    if _MAKES_SCORES.search(rule.target) and not is_finite(tensor):
        broken = next(one for one in rule.sources if reader.is_broken(checkpoint.tensors[one]))
        raise ModelLoadError(tell_broken(checkpoint, broken))
    return tensor


def check_fit(rules: Sequence[WeightRule], ignored: Iterable[str], checkpoint: Checkpoint) -> None:
    """Compare the names and shapes that a model needs with those that are stored.

    Args:
        rules: The model's weight map.
        ignored: Regular expressions of stored names that the model does not need.
        checkpoint: The stored tensors.

    Raises:
        ModelLoadError: They differ; names the first few missing, unexpected and misshapen tensors.
    """
    stored = checkpoint.tensors
    odd = [rule for rule in rules if len(rule.sources) != len(rule.shapes)]
    parts = {source for rule in odd for source in rule.sources}
    needed = {
        source: tuple(shape)
        for rule in rules
        if len(rule.sources) == len(rule.shapes)
        for source, shape in zip(rule.sources, _cut_as_stored(rule, stored), strict=True)
    }
    patterns = [re.compile(pattern) for pattern in ignored]
    there = [name for name in needed if name in stored]
    used = {(one.file, one.offset) for one in map(stored.get, (*there, *parts)) if one is not None}
    found = {
        "missing": [name for name in needed if name not in stored],
        "unexpected": [
            name
            for name, one in stored.items()
            if name not in needed
            and name not in parts
            and (one.file, one.offset) not in used  # another name of a shared tensor
            and not any(pattern.search(name) for pattern in patterns)
        ],
        "of another shape": [
            f"{name} is {list(stored[name].shape)}, expected {list(needed[name])}"
            for name in there
            if stored[name].shape != needed[name]
        ],
        "made of another number of tensors": [
            f"{rule.target} needs {len(rule.shapes)}, and not {', '.join(rule.sources)}"
            for rule in odd
        ],
        "quantised or of a dtype that is not supported": [
            f"{name} is {stored[name].kind}" for name in there if not is_floating(stored[name].kind)
        ],
    }
    faults = [list_few(f"{len(names)} {fault}", names) for fault, names in found.items() if names]
    if faults:
        raise ModelLoadError(
            f"the weights in {checkpoint.folder} do not fit its config.json: {'; '.join(faults)}; "
            "check that both come from the same model, and download it again"
        )


def check_names(rules: Sequence[WeightRule], checkpoint: Checkpoint) -> None:
    """Refuse a model of which most parts are other names of a few tensors: each takes memory.

    Args:
        rules: The model's weight map.
        checkpoint: The stored tensors, which have what the map needs.

    Raises:
        ModelLoadError: Says how many bytes there are, and how many the model would read.
    """
    sources = [checkpoint.tensors[source] for rule in rules for source in rule.sources]
    plain = [one for one in sources if one.made is None and not is_made(one)]
    needed = sum(one.num_bytes for one in plain)
    there = sum({(one.file, one.offset): one.num_bytes for one in plain}.values())
    if needed > _MOST_NAMES * there:
        raise ModelLoadError(
            f"{checkpoint.folder} gives the same tensors to many layers: {there} bytes of its "
            f"files would be {needed} bytes of weights, at most {_MOST_NAMES} times as many are "
            "read"
        )


_MOST_NAMES = 4
"""Names of a tensor, on the average: embeddings, head and both stacks share a table at most."""


def _cut_as_stored(
    rule: WeightRule, stored: Mapping[str, StoredTensor]
) -> Sequence[tuple[int, ...]]:
    """Return the shapes of a rule's sources; with the file's own cuts if the rule allows them."""
    if not rule.is_cut_anyhow or not all(name in stored for name in rule.sources):
        return rule.shapes
    found = [tuple(stored[name].shape) for name in rule.sources]
    columns = {shape[1:] for shape in (*found, *rule.shapes)}
    rows = [sum(shape[0] for shape in shapes if shape) for shapes in (found, rule.shapes)]
    return found if len(columns) == 1 and rows[0] == rows[1] else rule.shapes


_MAKES_SCORES = re.compile(r"\b(qkv|q_norm|k_norm|cross_q|cross_kv|correction)\.")
"""Parameters whose NaN does not reach the logits: attention treats a NaN score as masked, and
experts with a NaN rank are chosen at random."""


def _kind(core: DecoderLM, rule: WeightRule, checkpoint: Checkpoint) -> torch.dtype:
    """Return the dtype in which a parameter is read: the stored one if its module keeps it."""
    module_name, _, name = rule.target.rpartition(".")
    keeps = getattr(core.get_submodule(module_name), "keeps", None)
    if any(is_made(checkpoint.tensors[source]) for source in rule.sources):
        return core.dtype
    kind, *others = {DTYPES[checkpoint.tensors[source].kind] for source in rule.sources}
    is_kept = keeps is not None and name == "weight" and not others and keeps(kind)
    return kind if is_kept else core.dtype


def check_memory(
    rules: Sequence[WeightRule],
    kinds: Mapping[str, torch.dtype],
    beside: int,
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    sizes: Mapping[str, int],
) -> None:
    """Refuse weights that cannot fit into free memory.

    Args:
        rules: The model's weight map.
        kinds: Dtype of each parameter, by its name in the map.
        beside: Bytes of stored tensors that are kept beside the parameters.
        checkpoint: The stored tensors.
        dtype: Dtype of the computation.
        device: Device of the parameters.
        sizes: Bytes of parameters that stay packed, by their names in the map.

    Raises:
        ModelLoadError: Less memory is free than the weights take.
    """
    free = memory_to_load(device)
    counts = {rule.target: sum(map(math.prod, rule.shapes)) for rule in rules}
    need = beside + sum(
        sizes.get(target, count * kinds[target].itemsize) for target, count in counts.items()
    )
    if free is None or need <= free:
        return
    half = sum(counts.values()) * 2 + beside
    is_wide = half < 0.9 * need  # else most weights have 16 bits already
    smaller = f'`dtype="bfloat16"` ({_gigabytes(half)} GB), ' if is_wide else ""
    name = str(dtype).removeprefix("torch.")
    raise ModelLoadError(
        f"{checkpoint.folder} needs {_gigabytes(need)} GB of memory in {name}, "
        f"{_gigabytes(free)} are free on {device}: use {smaller}another `device`, a smaller model, "
        "or end what else takes memory"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f}" if count >= 1e8 else f"{count / 1e9:.2g}"


def _pack(
    tensor: torch.Tensor, packing: Codes, target: str, checkpoint: Checkpoint
) -> PackedWeight:
    try:
        return quantise(tensor, packing)
    except ValueError as error:
        problem = f"`{target}`: {error}; load it without `quantize`"
        raise ModelLoadError(f"{checkpoint.folder}: {problem}") from error


def in_order(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """Return the rows, or elements, of a tensor in another order; see `WeightRule`."""
    if order is None:
        return tensor
    return tensor.reshape(len(order), -1)[host_ints(order)].view_as(tensor)


def _by_module(rules: Sequence[WeightRule]) -> list[tuple[str, list[WeightRule]]]:
    """Group rules by the module that they fill, the largest module first."""
    groups: dict[str, list[WeightRule]] = {}
    for rule in rules:
        groups.setdefault(rule.target.rpartition(".")[0], []).append(rule)
    return sorted(
        groups.items(),
        key=lambda item: -sum(math.prod(shape) for rule in item[1] for shape in rule.shapes),
    )


def check_dtype(dtype: object) -> torch.dtype:
    """A dtype that models run in, of a dtype or its name.

    Raises:
        InvalidRequestError: It is none.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _MODEL_DTYPES:
        raise InvalidRequestError("dtype", dtype, f'use "auto" or one of {list(_MODEL_DTYPES)}')
    return _MODEL_DTYPES[name]
