"""Threads of our kernels, and of torch's own operators beside them.

The kernels have a team of threads for each thread that calls them (``src/team.h``). The OpenMP
threads of torch's operators spin for milliseconds after such an operator; on the same processors
both teams would wait for each other. So if a model computes with our kernels, the few operators
that are left to torch compute on the calling thread alone.
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
        core: The model; for any other object nothing happens.

    Returns:
        True if the thread has a team now.
    """
    if _claims(core):
        assert native.kernels is not None
        native.kernels.begin_team(torch.get_num_threads())
    return native.kernels is not None and native.kernels.has_team()


@contextmanager
def claimed_thread(core: object) -> Iterator[None]:
    """Claim this thread for a while; if it is claimed already, nothing changes."""
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
