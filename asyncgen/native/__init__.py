"""Our own kernels for the CPU, in C++: optional, and faster on processors that have them.

They are compiled when the package is installed (``hatch_build.py``), for Linux on x86-64 with a C++
compiler, and chosen when a model is loaded, if the processor has AVX-512. Everywhere else torch's
kernels compute the same. ``ASYNCGEN_KERNELS=torch`` in the environment chooses torch's kernels,
too.

Besides speed they keep a promise: the result of a row is one sum in one order, whatever the other
rows of a step are. So a text does not depend on the other texts of a batch, to the last bit.

A kernel is an object that is made once, of the tensors of a weight or of the pages, and called with
the tensors of a step (``_kernels.pyi`` lists them). It refuses tensors of another shape, dtype or
device. A debug build, compiled with ``-DASYNCGEN_CHECK``, also checks that each lies inside its
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

import torch  # import torch first: then its OpenMP is the one that we ask

if TYPE_CHECKING:
    from types import ModuleType

PANEL: Final = 32
"""Outputs that lie together in a weight."""

TILE_INPUTS: Final = 32
"""Inputs of a tile of a weight in bfloat16."""

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
    """Load the kernels of a separate file: a debug build, or one with sanitizers."""
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
"""The compiled module, or ``None`` if it is missing or does not suit the processor."""


def cpu_kernels() -> str:
    """Describe the kernels that models compute with on this CPU, and their instructions, for
    people.

    Returns:
        ``"asyncgen (…)"``, or ``"torch"`` if our own are not compiled, not made for the processor,
        or turned off by ``ASYNCGEN_KERNELS=torch``.
    """
    if kernels is None:
        return "torch"
    found = kernels.features()
    tiles = "AMX" if found["amx_bf16"] else "AVX-512"
    pairs = tiles if found["avx512_bf16"] else "torch"
    return f"asyncgen (float32: AVX-512, bfloat16: {pairs}, float16: AVX-512)"


def supports(dtype: torch.dtype) -> bool:
    """Return whether there are kernels for a dtype here."""
    if kernels is None:
        return False
    if dtype == torch.bfloat16:
        return bool(kernels.features()["avx512_bf16"])
    return dtype in (torch.float32, torch.float16)


def supports_packed_pages() -> bool:
    """Return whether attention reads pages in 8 bits here, at the dtypes that are supported."""
    return kernels is not None and bool(kernels.features()["avx512_vnni"])


def uses_tiles() -> bool:
    """Return whether bfloat16 is computed in tiles (AMX) here."""
    return kernels is not None and bool(kernels.features()["amx_bf16"])
