from array import array
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

_Layer: TypeAlias = tuple[
    tuple[Tensor, Tensor], int, bool, float, float, Sequence[float] | None, bool, int
]
"""A layer's keys and values, ``[P * K, page_size, D]`` each; its window or 0; whether that is a
chunk; its scale; its soft cap or 0; a slope for each query head; whether it has sinks; which of a
step's page tables is its own."""

def features() -> dict[str, bool]: ...
def begin_team(threads: int, /) -> int: ...
def end_team(before: int, /) -> None: ...
def has_team() -> bool: ...

class Linear:
    def __new__(
        cls,
        weight: Tensor,
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        inputs: int,
        outputs: int,
        is_gated: bool,
        uses_tiles: bool,
        matrices: int,
    ) -> Linear: ...
    def into(self, x: Tensor, out: Tensor, /) -> Tensor: ...
    def add_to(self, residual: Tensor, x: Tensor, /) -> None: ...

class Experts:
    def __new__(
        cls,
        router: Linear,
        gate_up: Linear,
        down: Linear,
        *,
        routing: dict[str, object],
        gate: str,
        alpha: float,
        limit: float,
        shared_gate_up: Linear | None,
        shared_down: Linear | None,
        is_shared_gated: bool,
    ) -> Experts: ...
    def add_to(self, stream: Tensor, x: Tensor, /) -> None: ...
    def add_chosen(self, stream: Tensor, x: Tensor, ids: Tensor, weights: Tensor, /) -> None: ...

class Norm:
    def __new__(cls, weight: Tensor, *, eps: float, dtype: torch.dtype) -> Norm: ...
    def into(self, x: Tensor, out: Tensor, /) -> Tensor: ...

class Rotary:
    def __new__(cls, dtype: torch.dtype) -> Rotary: ...
    def turn(self, heads: Tensor, cosines: Tensor, sines: Tensor, /) -> None: ...

class Attention:
    def __new__(
        cls,
        layers: Sequence[_Layer],
        *,
        num_heads: int,
        kv_heads: int,
        head_dim: int,
        page_size: int,
        uses_tiles: bool,
    ) -> Attention: ...
    def lay_out(self, rows: array[int], pages: array[int], out: Tensor, /) -> None: ...
    def attend(self, layer: int, heads: Tensor, sinks: Tensor | None = None, /) -> Tensor: ...

_Block: TypeAlias = tuple[Norm, Linear, Norm | None, Linear, Norm, Linear | Experts, Linear | None]
"""Input norm, queries, keys and values, norm of heads, output, second norm, gate and up, down; or
experts and nothing in the place of the last two."""

class Layers:
    def __new__(cls, blocks: Sequence[_Block], *, rotary: Rotary) -> Layers: ...
    def run(
        self, stream: Tensor, cosines: Tensor, sines: Tensor, attention: Attention, /
    ) -> None: ...
