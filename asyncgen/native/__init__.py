"""Our own kernels for the CPU, in C++: optional, and faster where they run.

They are compiled when the package is installed (``hatch_build.py``), for Linux on x86-64 with a
C++ compiler at hand, and chosen when a model is loaded, where the processor has AVX-512. Everywhere
else torch's kernels compute the same. ``ASYNCGEN_KERNELS=torch`` in the environment chooses those,
too.

What sets them apart, besides speed: the result of a row is one sum in one order, whatever the other
rows of a step are. So a text does not depend on its company in a batch, to the last bit.

A kernel is an object that is made once, of the tensors of a weight or of the pages, and called with
the tensors of a step (``_kernels.pyi`` lists them). It refuses tensors of another shape, dtype or
device; a debug build, compiled with ``-DASYNCGEN_CHECK``, also checks that each lies inside its
memory, that pages exist, and every address that is computed from a page.
``ASYNCGEN_KERNELS=/path/_kernels.so`` chooses such a build.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch  # first: its OpenMP is then the one that we ask

if TYPE_CHECKING:
    from types import ModuleType

PANEL: Final = 32
"""Outputs that lie together in a weight."""

TILE_INPUTS: Final = 32
"""Inputs of a weight in bfloat16 come in so many."""

MOST_HEAD_DIM: Final = 512
"""The largest heads that attention is computed for."""


def _find() -> ModuleType | None:
    chosen = os.environ.get("ASYNCGEN_KERNELS", "")
    if chosen == "torch":
        return None
    try:
        found = _load(chosen) if chosen else import_module("asyncgen.native._kernels")
    except ModuleNotFoundError:  # not compiled
        return None
    return found if found.features()["avx512"] else None


def _load(file: str) -> ModuleType:
    """The kernels in a file of their own: a debug build, one with sanitizers."""
    if not (file.endswith(".so") and Path(file).is_file()):
        raise ValueError(
            f"ASYNCGEN_KERNELS is {file!r} and must be unset, 'torch' or the compiled kernels' file"
        )
    name = "asyncgen.native._kernels"
    spec = spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kernels = _find()
"""The compiled module, or ``None`` where it is missing or the processor is not made for it."""


def cpu_kernels() -> str:
    """Say whose kernels models compute with on this CPU, for people: in which instructions.

    Returns:
        ``"asyncgen (…)"``, or ``"torch"`` where our own are not compiled, not made for the
        processor, or turned off by ``ASYNCGEN_KERNELS=torch``.
    """
    if kernels is None:
        return "torch"
    found = kernels.features()
    tiles = "AMX" if found["amx_bf16"] else "AVX-512"
    pairs = tiles if found["avx512_bf16"] else "torch"
    return f"asyncgen (float32: AVX-512, bfloat16: {pairs}, float16: AVX-512)"


def supports(dtype: torch.dtype) -> bool:
    """Whether there are kernels for a dtype here."""
    if kernels is None:
        return False
    if dtype == torch.bfloat16:
        return bool(kernels.features()["avx512_bf16"])
    return dtype in (torch.float32, torch.float16)


def supports_packed_pages() -> bool:
    """Whether attention reads pages in 8 bits here, at the dtypes that are supported."""
    return kernels is not None and bool(kernels.features()["avx512_vnni"])


def uses_tiles() -> bool:
    """Whether bfloat16 is computed in tiles (AMX) here."""
    return kernels is not None and bool(kernels.features()["amx_bf16"])
