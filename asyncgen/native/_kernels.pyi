from array import array
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

_Layer: TypeAlias = tuple[
    tuple[Tensor, ...], int, bool, float, float, Sequence[float] | None, bool, int
]
"""A layer's keys and values, ``[P * K, page_size, D]`` each, and where these are codes, int8, the
scales of both, ``[P * K, page_size]``; its window or 0; whether that is a
chunk; its scale; its soft cap or 0; a slope for each query head; whether it has sinks; which of a
step's page tables is its own."""

def features() -> dict[str, bool]: ...
def begin_team(threads: int, /) -> int: ...
def end_team(before: int, /) -> None: ...
def has_team() -> bool: ...
def pass_gates(x: Tensor, gates: Tensor, /) -> None: ...
def argmax(scores: Tensor, values: Tensor, places: Tensor, /) -> None: ...
def ban(scores: Tensor, words: Tensor, places: Tensor, /) -> None: ...

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
        activation: str | None,
    ) -> Linear: ...
    def into(self, x: Tensor, out: Tensor, /) -> Tensor: ...
    def add_to(self, residual: Tensor, x: Tensor, /) -> None: ...
    def look_up(self, ids: Tensor, out: Tensor, /) -> Tensor: ...

def packed_linear(
    data: Tensor,
    bias: Tensor | None,
    *,
    dtype: torch.dtype,
    inputs: int,
    outputs: int,
    is_gated: bool,
    group: int,
    table: Sequence[int] | None,
    scales: str,
    zeros: bool,
    minimums: str,
    is_by_row: bool,
    order: Tensor | None,
    activation: str | None,
    matrices: int,
) -> Linear: ...
def joined_linear(parts: Sequence[Linear], /) -> Linear: ...
def write_panels(
    panels: Tensor,
    rows: Tensor,
    weights: Sequence[tuple[Tensor | None, ...]],
    *,
    inputs: int,
    group: int,
    has_table: bool,
    shares: bool,
    is_by_row: bool,
) -> None: ...
def take_blocks_apart(
    name: str,
    blocks: Tensor,
    codes: Tensor,
    scales: Tensor,
    minimums: Tensor | None,
    super_scales: Tensor | None,
    super_minimums: Tensor | None,
    /,
) -> None: ...

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
        enter: Linear | None,
        leave: Linear | None,
        shared_gate_up: Linear | None,
        shared_down: Linear | None,
        is_shared_gated: bool,
    ) -> Experts: ...
    def add_to(self, stream: Tensor, x: Tensor, /) -> None: ...
    def add_chosen(self, stream: Tensor, x: Tensor, ids: Tensor, weights: Tensor, /) -> None: ...

class Latent:
    def __new__(
        cls,
        latents: Linear,
        query_norm: Norm | None,
        queries: Linear,
        latent_norm: Norm,
        keys_values: Linear,
        *,
        heads: int,
        turned: int,
        unturned: int,
        values: int,
        head_dim: int,
    ) -> Latent: ...
    def into(self, x: Tensor, out: Tensor, /) -> Tensor: ...

class Norm:
    def __new__(
        cls,
        weight: Tensor,
        bias: Tensor | None,
        *,
        eps: float,
        dtype: torch.dtype,
        is_centred: bool,
    ) -> Norm: ...
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
        codes_of: torch.dtype | None,
    ) -> Attention: ...
    def lay_out(self, rows: array[int], pages: array[int], out: Tensor, /) -> None: ...
    def attend(self, layer: int, heads: Tensor, sinks: Tensor | None = None, /) -> Tensor: ...

class States:
    def __new__(
        cls, layers: Sequence[tuple[Tensor | None, Tensor | None] | None], *, dtype: torch.dtype
    ) -> States: ...
    def lay_out(self, rows: array[int], /) -> None: ...

class DualMixer:
    def __new__(
        cls,
        enter: Linear,
        window: Tensor,
        window_bias: Tensor | None,
        steps_bias: Tensor,
        decay: Tensor,
        skip: Tensor,
        norm: Norm | None,
        leave: Linear,
        factors: Tensor | None,
        *,
        heads: int,
        groups: int,
        numbers: int,
        least: float,
        most: float,
        norms_first: bool,
        scale: float,
    ) -> DualMixer: ...
    def add_to(self, stream: Tensor, x: Tensor, states: States, layer: int, /) -> None: ...

class SelectiveMixer:
    def __new__(
        cls,
        enter: Linear,
        window: Tensor,
        window_bias: Tensor | None,
        select: Linear,
        low: Linear,
        steps_bias: Tensor,
        decay: Tensor,
        skip: Tensor,
        leave: Linear,
        *,
        low_norm: Norm | None,
        enter_norm: Norm | None,
        leave_norm: Norm | None,
    ) -> SelectiveMixer: ...
    def add_to(self, stream: Tensor, x: Tensor, states: States, layer: int, /) -> None: ...

class DeltaMixer:
    def __new__(
        cls,
        enter: Linear,
        window: Tensor,
        window_bias: Tensor | None,
        sides_norm: Norm,
        steps_bias: Tensor,
        decay: Tensor,
        norm: Norm,
        leave: Linear,
        *,
        heads: int,
        decays: Linear | None,
        gates: Linear | None,
        most_rate: float,
    ) -> DeltaMixer: ...
    def add_to(self, stream: Tensor, x: Tensor, states: States, layer: int, /) -> None: ...

class ConvolutionMixer:
    def __new__(
        cls, enter: Linear, window: Tensor, window_bias: Tensor | None, leave: Linear
    ) -> ConvolutionMixer: ...
    def add_to(self, stream: Tensor, x: Tensor, states: States, layer: int, /) -> None: ...

class LightningMixer:
    def __new__(
        cls, enter: Linear, kept: Tensor, norm: Norm, leave: Linear, *, scale: float
    ) -> LightningMixer: ...
    def add_to(self, stream: Tensor, x: Tensor, states: States, layer: int, /) -> None: ...

class GriffinMixer:
    def __new__(
        cls,
        enter: Linear,
        window: Tensor,
        window_bias: Tensor,
        input_gate: Tensor,
        input_bias: Tensor,
        decay_gate: Tensor,
        decay_bias: Tensor,
        decay: Tensor,
        leave: Linear,
    ) -> GriffinMixer: ...
    def add_to(self, stream: Tensor, x: Tensor, states: States, layer: int, /) -> None: ...

_Block: TypeAlias = tuple[
    Norm | None,
    Linear | Latent | None,
    Norm | None,
    Norm | None,
    bool,
    int,
    Tensor | None,
    Linear | None,
    Norm | None,
    Norm | None,
    Linear | Experts | None,
    Linear | None,
    Norm | None,
    bool,
    float,
    float,
    DualMixer
    | SelectiveMixer
    | DeltaMixer
    | ConvolutionMixer
    | LightningMixer
    | GriffinMixer
    | None,
    bool,
    Norm | None,
    Norm | None,
]
"""Input norm; queries, keys and values, or what makes them of latent rows; norm of heads, or of all
queries and of all keys; whether after they were turned; the number of the rope that turns them, or
-1; sinks; output; its norm; second norm; up with its activation and down, or experts and nothing;
the norm of what that gives; whether both parts are parallel; factors on what each adds; what goes
on from a state; whether gates of what attention gives lie behind the heads; norms that take the
stream's place once the first, and the second, norm was made of it. What is ``None`` is left out."""

class Layers:
    def __new__(
        cls,
        blocks: Sequence[_Block],
        *,
        rotary: Rotary,
        width: int,
        norm: Norm | None,
        head: Linear | None,
    ) -> Layers: ...
    def run(
        self,
        stream: Tensor,
        angles: Sequence[tuple[Tensor, ...]],
        attention: Attention | States | tuple[Attention, States],
        wanted: Tensor | None,
        logits: Tensor | None,
        /,
    ) -> None: ...
