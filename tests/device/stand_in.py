"""A CPU in the place of an accelerator: tokens first, recorded steps, a fused kernel, in operators.

Everything of the engine that only an accelerator uses then runs, but for the device itself. It is
put in place for a whole process.
"""

from __future__ import annotations

import inspect

import torch.nn.attention.varlen

from asyncgen import native
from asyncgen.engine.setup import assembly
from asyncgen.engine.setup.assembly import DeviceKind
from tests.doubles.recorders import TapeRecorder
from tests.doubles.varlen import before_pages, varlen_attn

__all__ = ["put_in_place"]

KIND = DeviceKind(
    page_size=256,
    prefill_chunk=256,
    prefill_beside=256,
    most_chunks=1,
    snapshot_tokens=2048,
    heads_first=False,
    runs_ahead=True,
    recorder=lambda device: TapeRecorder(),
)


def put_in_place() -> None:
    """From now on the CPU of this process is used as an accelerator is."""
    # A tape records what torch computes: there may be no other kernels.
    native.kernels = None
    # It knows what this torch knows, pages or not.
    known = inspect.signature(torch.nn.attention.varlen.varlen_attn).parameters
    function = varlen_attn if "block_table" in known else before_pages
    vars(torch.nn.attention.varlen).update(varlen_attn=function)
    vars(assembly).update(kind_of=lambda device: KIND)
