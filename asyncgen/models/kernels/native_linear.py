"""Products by our own kernels: weights in panels of 32 outputs, for any number of rows.

See `asyncgen.native` for what they promise, and ``asyncgen/native/src/linear_*.cpp`` for the code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.functional import pad

from asyncgen import native
from asyncgen.native import PANEL, TILE_INPUTS
from asyncgen.native.weight_memory import empty_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


HALF: Final = PANEL // 2
GATES: Final = ("silu", "gelu", "gelu_tanh")
"""Activations of gates that are joined with their up-projections."""
ACTIVATED: Final = (*GATES, "relu", "relu2")
"""Activations that our products may apply."""


def widens(stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Return whether our kernels multiply rows of a dtype by a weight that stays in 16 bits on this
    CPU.

    The weight is widened in registers, which is exact: the products are those of the converted
    weight, bit for bit, for half of its memory.

    Args:
        stored: Dtype of the weight.
        dtype: Dtype of the rows.
    """
    is_wide = dtype == torch.float32 and native.supports(dtype)
    return is_wide and stored in (torch.bfloat16, torch.float16)


class NativeStack:
    """Several weights ``[out, in]`` in panels; each row is multiplied by one of them.

    Attributes:
        activation: Applied to the gate, or to all of the product; ``None``: nothing, as in experts,
            whose kernel is told the activation of their gates.
        compiled: The kernel itself, for a compiled ``Experts``.
        is_gated: True if each weight is a gate's and an up-projection's, one below the other.
    """

    __slots__ = (
        "_bias",
        "_dtype",
        "_inputs",
        "_matrices",
        "_outputs",
        "_weight",
        "activation",
        "compiled",
        "is_gated",
    )

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        matrices: int,
        is_gated: bool = False,
        dtype: torch.dtype | None = None,
        activation: str | None = None,
    ) -> None:
        """Lay weights out; the caller may drop the original afterwards.

        Args:
            weight: One below the other, ``[matrices * out, in]``.
            bias: ``[matrices * out]``, or ``None``.
            matrices: Number of weights.
            is_gated: See the attribute.
            dtype: Of rows and products; ``None``: the weight's. See `widens` for others.
            activation: See the attribute; one of ``GATES`` or ``ACTIVATED``.
        """
        assert native.kernels is not None
        self._dtype = dtype = dtype or weight.dtype
        self._inputs, self._matrices = weight.shape[1], matrices
        self._outputs = len(weight) // matrices
        self.is_gated, self.activation = is_gated, activation
        parts = torch.split(weight, self._outputs)
        self._weight = _lay_out(parts, is_gated, in_tiles=dtype == torch.bfloat16)
        self._bias = None
        if bias is not None:
            biases = torch.split(bias.float(), self._outputs)
            # [matrices * panels, 2, 16]
            self._bias = torch.cat([torch.stack(to_halves(one, is_gated), 1) for one in biases])
        self.compiled = native.kernels.Linear(
            self._weight,
            self._bias,
            dtype=dtype,
            inputs=self._inputs,
            outputs=self._outputs,
            is_gated=is_gated,
            uses_tiles=native.uses_tiles(),
            matrices=matrices,
            activation=activation,
        )

    def dense(self) -> Tensor:
        """Give the weights back, ``[matrices * out, in]``."""
        return self._whole(_take_apart(self._weight, self._inputs))

    def _whole(self, panels: Tensor) -> Tensor:
        parts = panels.chunk(self._matrices)
        return torch.cat([from_halves(part, self._outputs, self.is_gated) for part in parts])

    def _ordinary(self) -> tuple[Tensor, Tensor | None]:
        """Weights and biases in the ordinary layout, to copy and pickle."""
        return self.dense(), None if self._bias is None else self._whole(self._bias)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by way of the ordinary layout, as the others do."""
        return NativeStack, (*self._ordinary(), self._matrices, self.is_gated, self._dtype)


class NativeKernel(NativeStack):
    """A weight ``[out, in]`` in panels, and its bias; see `Kernel` for the methods.

    Attributes:
        into: See `Kernel`. With ``is_gated`` it gives ``act(gate) * up``, ``[N, out / 2]``.
        add_to: See `Kernel`.
    """

    __slots__ = ("add_to", "into")

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        is_gated: bool = False,
        dtype: torch.dtype | None = None,
        activation: str | None = None,
    ) -> None:
        """Lay a weight out; arguments are those of `NativeStack`. The default of a gate is SiLU."""
        activation = activation or ("silu" if is_gated else None)
        super().__init__(weight, bias, 1, is_gated, dtype, activation)
        # A step calls them directly, without a Python function around each.
        self.into: Callable[[Tensor, Tensor], Tensor] = self.compiled.into
        self.add_to: Callable[[Tensor, Tensor], None] = self.compiled.add_to

    def product(self, x: Tensor) -> Tensor:
        """See `Kernel`."""
        return self.into(x, x.new_empty(x.shape[0], self._outputs >> self.is_gated))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by way of the ordinary layout, as the others do."""
        return NativeKernel, (*self._ordinary(), self.is_gated, self._dtype, self.activation)


def to_halves(rows: Tensor, is_gated: bool) -> tuple[Tensor, Tensor]:
    """View outputs ``[out, ...]`` as both halves of each panel, ``[panels, 16, ...]``.

    They are filled up with zeros. A panel of a gated weight holds 16 outputs of the gate and the
    same ones of the up-projection.
    """
    if is_gated:
        gate, up = (_filled(half, HALF).view(-1, HALF, *rows.shape[1:]) for half in rows.chunk(2))
        return gate, up
    first, second = _filled(rows, PANEL).view(-1, 2, HALF, *rows.shape[1:]).unbind(1)
    return first, second


def from_halves(halves: Tensor, outputs: int, is_gated: bool) -> Tensor:
    """Undo `to_halves`: ``[panels, 2, 16, ...]`` to ``[out, ...]``."""
    if not is_gated:
        return halves.flatten(0, 2)[:outputs]
    gate, up = (half.flatten(0, 1)[: outputs // 2] for half in halves.unbind(1))
    return torch.cat((gate, up))


def _filled(rows: Tensor, multiple: int) -> Tensor:
    missing = -len(rows) % multiple
    rows = rows.contiguous()
    return pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


def _lay_out(matrices: Sequence[Tensor], is_gated: bool, *, in_tiles: bool) -> Tensor:
    """Make panels of ``[out, in]``: by inputs, or by tiles of 16 pairs of inputs and 16 outputs.

    The panels of several matrices of one size follow each other. The last tiles are filled up with
    zeros.
    """
    outputs, inputs = matrices[0].shape
    count = -(-outputs // 2 // HALF) if is_gated else -(-outputs // PANEL)
    shape: tuple[int, ...] = (inputs, PANEL)
    if in_tiles:
        shape = (-(-inputs // TILE_INPUTS), 2, TILE_INPUTS // 2, HALF, 2)
    panels = empty_weight((len(matrices) * count, *shape), matrices[0].dtype)
    for place, matrix in zip(torch.split(panels, count), matrices, strict=True):
        for number, half in enumerate(to_halves(matrix, is_gated)):
            _fill(place, number, half)
    return panels


def _fill(panels: Tensor, number: int, half: Tensor) -> None:
    """Write the first or second half ``[panels, 16, in]`` of each of a matrix's panels."""
    if panels.dim() == 3:
        _by_halves(panels)[:, number] = half
        return
    count, tiles, _, pairs = panels.shape[:4]
    if half.shape[2] % TILE_INPUTS:
        half = pad(half, (0, tiles * TILE_INPUTS - half.shape[2]))
    panels[:, :, number] = half.view(count, HALF, tiles, pairs, 2).permute(0, 2, 3, 1, 4)


def _by_halves(panels: Tensor) -> Tensor:
    """View panels ``[panels, in, 32]`` as ``[panels, 2, 16, in]``.

    In bfloat16 the outputs of the halves alternate, because they are widened in pairs.
    """
    if panels.dtype == torch.bfloat16:
        return panels.view(*panels.shape[:2], HALF, 2).permute(0, 3, 2, 1)
    return panels.view(*panels.shape[:2], 2, HALF).permute(0, 2, 3, 1)


def _take_apart(panels: Tensor, inputs: int) -> Tensor:
    """Undo `_lay_out`: halves of panels, ``[panels, 2, 16, in]``."""
    if panels.dim() == 3:
        return _by_halves(panels)
    return panels.permute(0, 2, 4, 1, 3, 5).reshape(len(panels), 2, HALF, -1)[..., :inputs]
