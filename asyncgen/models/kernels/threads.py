"""Which threads our kernels compute on, and what torch's own operators do meanwhile.

The kernels have a team of threads for each thread that calls them (``src/team.h``). OpenMP's,
which torch's operators use, spin for milliseconds when such an operator is done; on the same
processors both teams would wait for each other. So where a model computes with our kernels, the few
operators that are left to torch compute on the calling thread alone.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from asyncgen import native
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.native_linear import NativeKernel, NativeStack
from asyncgen.models.kernels.native_packed import PackedLinearKernel, PackedStack

if TYPE_CHECKING:
    from collections.abc import Iterator

_OURS = NativeKernel | NativeStack | PackedLinearKernel | PackedStack


def claim_thread(core: object) -> bool:
    """Give this thread to a model that computes with our kernels, until the thread ends.

    Args:
        core: The model; whatever else it may be, nothing happens.

    Returns:
        Whether the thread has a team now.
    """
    if _claims(core):
        assert native.kernels is not None
        native.kernels.begin_team(torch.get_num_threads())
    return native.kernels is not None and native.kernels.has_team()


@contextmanager
def claimed_thread(core: object) -> Iterator[None]:
    """The same for a while; where the thread is claimed already, nothing changes."""
    if not _claims(core):
        yield
        return
    assert native.kernels is not None
    before = native.kernels.begin_team(torch.get_num_threads())
    try:
        yield
    finally:
        native.kernels.end_team(before)


def _claims(core: object) -> bool:
    if native.kernels is None or native.kernels.has_team() or not isinstance(core, nn.Module):
        return False
    layers = [module for module in core.modules() if isinstance(module, Linear)]
    return bool(layers) and all(isinstance(layer.kernel, _OURS) for layer in layers)
