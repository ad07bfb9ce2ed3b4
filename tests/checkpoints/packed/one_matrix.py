"""Folders with one packed matrix of each scheme, and what they hold: milliseconds a case."""

from __future__ import annotations

import json
import math
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from asyncgen.checkpoints.checkpoint import open_checkpoint
from asyncgen.checkpoints.packed.quantized_checkpoint import (
    METHODS,
    join_packed,
    quantisation_method,
)
from asyncgen.errors import ModelLoadError
from tests.checkpoints.packed.test_quantized_checkpoint import SCHEMES, compressed, float8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    Made = tuple[dict[str, Tensor], Tensor]

STEM = "model.layers.0.mlp.up_proj"
ROWS, COLUMNS = 16, 128
FILE = "model.safetensors"
MOST_BYTES = 300 << 20
MOST_SECONDS = 2.0


def bitnet(outputs: int, inputs: int) -> Made:
    """Bytes of four rows each, and one scale."""
    numbers = torch.randint(0, 3, (outputs, inputs), dtype=torch.uint8)
    quarters = numbers.view(4, -1, inputs)
    packed = torch.stack([quarters[place] << 2 * place for place in range(4)]).sum(0)
    scale = torch.tensor([0.25])
    return {"weight": packed.to(torch.uint8), "weight_scale": scale}, (numbers.float() - 1) / scale


def group_of(settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Settings of compressed-tensors with more keys for its weights."""
    settings["config_groups"]["group_0"]["weights"] |= changes
    return settings


EVERY: dict[str, tuple[Callable[[int, int], Made], dict[str, Any], float]] = {
    **SCHEMES,
    "int4 zeros": (
        SCHEMES["int4 zeros"][0],
        group_of(compressed("pack-quantized", 4, "group"), symmetric=False),
        0,
    ),
    "float8 of compressed blocks": (
        lambda out, inputs: float8(out, inputs, block=16),
        group_of(compressed("float-quantized", 8, "block", "float"), block_structure=[16, 16]),
        0,
    ),
    "float8 of fbgemm": (float8, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, 0),
    "bitnet": (bitnet, {"quant_method": "bitnet", "linear_class": "bitlinear"}, 1e-6),
}
"""A maker, settings and a tolerance for each scheme."""


def make(scheme: str) -> tuple[dict[str, Tensor], Tensor, dict[str, Any]]:
    """Return the parts of a matrix by their names in a file, its values, and the settings."""
    torch.manual_seed(3)
    maker, settings, _ = EVERY[scheme]
    parts, dense = maker(ROWS, COLUMNS)
    named = {f"{STEM}.{name}": part.contiguous() for name, part in parts.items()}
    return named, dense, json.loads(json.dumps(settings))


def write(folder: Path, tensors: Mapping[str, Tensor], settings: object) -> Path:
    """Write a folder with these tensors, and this ``quantization_config``."""
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_bytes(save(dict(tensors)))
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return folder


def write_sparse(
    folder: Path,
    tensors: Mapping[str, Tensor],
    settings: object,
    large: Mapping[str, tuple[str, list[int]]],
) -> Path:
    """Write such a folder where some tensors have a dtype and a shape, and zeros in holes."""
    small = {name: one for name, one in tensors.items() if name not in large}
    write(folder, small, settings)
    whole = (folder / FILE).read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    end = len(data)
    sizes = {"U8": 1, "I8": 1, "F16": 2, "F32": 4, "I32": 4, "I64": 8}
    for name, (kind, shape) in large.items():
        begin, end = end, end + math.prod(shape) * sizes[kind]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / FILE).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
        file.truncate(8 + len(text) + end)
    return folder


def values(folder: Path, stated: object = None) -> Tensor:
    """Read the matrix of a folder as `asyncgen.load_model` does, in float32.

    Args:
        folder: The folder.
        stated: Its ``quantization_config``; ``None``: that in the file.

    Raises:
        ModelLoadError: As the loader, which compares the shape with that of the model.
    """
    raw = json.loads((folder / "config.json").read_text())
    raw = raw if stated is None else {"quantization_config": stated}
    if quantisation_method(raw) not in METHODS:
        raise ModelLoadError(f"{folder / 'config.json'}: quant_method")  # `load_model` says it
    checkpoint = join_packed(open_checkpoint(folder), raw)
    matrix = checkpoint.tensors[f"{STEM}.weight"]
    if matrix.shape != (ROWS, COLUMNS):
        raise ModelLoadError(f"{folder / FILE}: {STEM}.weight is of another shape")
    if matrix.packed is not None:
        packed = matrix.packed()
        if not packed.is_finite():
            raise ModelLoadError(f"{folder / FILE}: {STEM}.weight holds NaN")
        return packed.dequantise()
    assert matrix.unpacked is not None
    return matrix.unpacked()


def peak_bytes() -> int | None:
    """Return the most memory since `forget_peak`; ``None``: this system does not tell it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = status.read_text().splitlines()
    return next((int(one.split()[1]) * 1024 for one in lines if one.startswith("VmHWM")), None)


def forget_peak() -> None:
    """Begin to measure the peak of memory anew."""
    place = Path("/proc/self/clear_refs")
    if place.exists():
        place.write_text("5")


class Bounded:
    """A context that checks what its body takes: time, and memory beyond that of before."""

    def __init__(self, what: object = "", spare: int = 0) -> None:
        """Begin.

        Args:
            what: Named in the failure.
            spare: Bytes that may be taken besides: the size of the file.
        """
        self.what, self.spare = what, spare

    def __enter__(self) -> None:
        forget_peak()
        self.before, self.start = peak_bytes() or 0, time.perf_counter()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        taken, seconds = (peak_bytes() or 0) - self.before, time.perf_counter() - self.start
        assert seconds < MOST_SECONDS, (self.what, seconds)
        assert taken < MOST_BYTES + self.spare, (self.what, taken)


def keys_of(settings: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all keys."""
    for key, value in settings.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from keys_of(value, (*above, key))


def replaced(settings: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    """Copy settings, with another value for a key."""
    copy: dict[str, Any] = json.loads(json.dumps(settings))
    part = copy
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return copy
