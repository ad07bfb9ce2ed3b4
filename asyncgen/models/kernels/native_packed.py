"""Products of weights in 4 and 8 bits, by our own kernels.

A row's inputs become integers, each group with a scale of its own, and the sum of a group's
products is exact; see ``asyncgen/native/src/linear_packed.cpp``. The error of an input is at most 1
/ 65,534 of the largest of its group at float32 and float16, where integers have 16 bits, and 1 /
254 at bfloat16, where they have 8 if the weight's numbers do. So a weight is read in its packed
form.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from asyncgen import native
from asyncgen.models.kernels.native_linear import HALF, from_halves, to_halves
from asyncgen.models.kernels.packed_panels import PanelLayout, lay_out, take_apart
from asyncgen.models.kernels.packed_weight import group_alike, join
from asyncgen.native import PANEL
from asyncgen.native.weight_memory import empty_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.models.kernels.packed_weight import PackedWeight


def supports_packed(dtype: torch.dtype) -> bool:
    """Return whether rows of a dtype are multiplied by packed weights here; else these are
    unpacked."""
    if native.kernels is None or not native.supports(dtype):
        return False
    return bool(native.kernels.features()["avx512_vnni"])


class PackedLinearKernel:
    """Packed weights one below the other, and their bias; see `Kernel` for the methods.

    Attributes:
        is_gated: See `NativeStack`.
        activation: See `NativeStack`.
        compiled: The kernel itself.
    """

    __slots__ = (
        "_dtype",
        "_outputs",
        "_runs",
        "activation",
        "add_to",
        "compiled",
        "into",
        "is_gated",
    )

    def __init__(
        self,
        parts: Sequence[PackedWeight],
        bias: Tensor | None,
        is_gated: bool = False,
        *,
        dtype: torch.dtype,
        activation: str | None = None,
    ) -> None:
        """Lay weights out; the caller may drop the originals afterwards.

        Args:
            parts: One below the other; those that are not alike keep a kernel each.
            bias: ``[out]``, or ``None``.
            is_gated: See the attribute; only of parts that are alike.
            dtype: Of rows and products.
            activation: See the attribute; the default of a gate is SiLU.
        """
        assert native.kernels is not None
        runs = group_alike(parts)
        assert len(runs) == 1 or not is_gated
        self._dtype, self.is_gated = dtype, is_gated
        counts = [sum(part.outputs for part in run) for run in runs]
        self._outputs = sum(counts)
        self.activation = activation = activation or ("silu" if is_gated else None)
        biases: Sequence[Tensor | None] = [None] * len(runs)
        if bias is not None:
            biases = torch.split(bias, counts)
        self._runs = [
            PackedStack(run, own, 1, is_gated, dtype=dtype, activation=activation)
            for run, own in zip(runs, biases, strict=True)
        ]
        compiled = self._runs[0].compiled
        if len(self._runs) > 1:
            compiled = native.kernels.joined_linear([run.compiled for run in self._runs])
        self.compiled = compiled
        self.into: Callable[[Tensor, Tensor], Tensor] = compiled.into
        self.add_to: Callable[[Tensor, Tensor], None] = compiled.add_to

    def product(self, x: Tensor) -> Tensor:
        """See `Kernel`."""
        return self.into(x, x.new_empty(x.shape[0], self._outputs >> self.is_gated))

    def parts(self) -> list[PackedWeight]:
        """Give the weights back; copies."""
        return [run.weight() for run in self._runs]

    def dense(self) -> Tensor:
        """See `Kernel`; in float32."""
        return torch.cat([part.dequantise() for part in self.parts()])

    def bytes(self) -> Tensor:
        """View the packed bytes of the matrix, of one part, ``[rows, bytes]`` uint8."""
        return self._runs[0].panels.flatten(0, 1)

    def look_up(self, ids: Tensor) -> Tensor:
        """Look up rows ``[N, in]`` of the matrix, of ids ``[N]`` (int64); of one part without a
        gate."""
        rows = torch.empty(len(ids), self._runs[0].layout.inputs, dtype=self._dtype, device="cpu")
        found: Tensor = self.compiled.look_up(ids.contiguous(), rows)
        return found

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle by way of the ordinary layout, as the others do."""
        biases = [run.whole_bias() for run in self._runs]
        bias = None if biases[0] is None else torch.cat([one for one in biases if one is not None])
        made = partial(PackedLinearKernel, dtype=self._dtype, activation=self.activation)
        return made, (self.parts(), bias, self.is_gated)


class PackedStack:
    """Packed weights that are alike; each row is multiplied by one of them.

    Attributes:
        bias: Biases in panels, or ``None``.
        compiled: The kernel itself, for a compiled ``Experts``.
        is_gated: As that of `NativeStack`.
        layout: Layout of the panels.
        outputs: Outputs of each matrix.
        panels: Bytes of the panels.
    """

    __slots__ = (
        "_dtype",
        "_matrices",
        "_order",
        "bias",
        "compiled",
        "is_gated",
        "layout",
        "outputs",
        "panels",
    )

    def __init__(
        self,
        weights: Sequence[PackedWeight],
        bias: Tensor | None,
        matrices: int,
        is_gated: bool = False,
        *,
        dtype: torch.dtype,
        activation: str | None = None,
    ) -> None:
        """Lay weights out; the caller may drop the originals afterwards.

        Args:
            weights: One below the other, together ``[matrices * out, in]``, and alike.
            bias: ``[matrices * out]``, or ``None``.
            matrices: Number of matrices.
            is_gated: See the attribute.
            dtype: Of rows and products.
            activation: As that of `NativeStack`.
        """
        assert native.kernels is not None
        self.layout = layout = PanelLayout.of(weights)
        self.is_gated, self._order = is_gated, weights[0].order
        self._dtype, self._matrices = dtype, matrices
        self.outputs = count = sum(weight.outputs for weight in weights) // matrices
        places = [slice(at * count, (at + 1) * count) for at in range(matrices)]
        panels = -(-count // PANEL) if not is_gated else -(-count // 2 // HALF)
        self.panels = empty_weight((matrices * panels, 2, layout.num_bytes()), torch.uint8)
        lay_out(weights, layout, is_gated, self.panels, matrices)
        self.bias = None
        if bias is not None:
            bias = bias.float()
            self.bias = torch.cat(
                [torch.stack(to_halves(bias[one], is_gated), 1) for one in places]
            )
        kinds = {name: str(kind).removeprefix("torch.") for name, kind in layout.kinds.items()}
        if layout.shares:
            kinds["scales"] = kinds["minimums"] = "int4"
        self.compiled = native.kernels.packed_linear(
            self.panels,
            self.bias,
            dtype=dtype,
            inputs=layout.inputs,
            outputs=self.outputs,
            is_gated=is_gated,
            group=layout.group,
            table=layout.table,
            scales=kinds["scales"],
            zeros="zeros" in kinds,
            minimums=kinds.get("minimums", "none"),
            is_by_row=layout.is_by_row,
            order=self._order,
            activation=activation,
            matrices=matrices,
        )

    def parts(self) -> list[PackedWeight]:
        """Give the weights back as one part; a copy."""
        return [self.weight()]

    def weight(self) -> PackedWeight:
        """Give the weights back, one below the other; a copy."""
        parts = [
            take_apart(panels, self.layout, self._order, self.outputs, self.is_gated)
            for panels in self.panels.chunk(self._matrices)
        ]
        return join(parts)[0]

    def dense(self) -> Tensor:
        """Unpack the weights, ``[matrices * out, in]`` float32."""
        return self.weight().dequantise()

    def whole_bias(self) -> Tensor | None:
        """Give the biases back, ``[matrices * out]``; a copy."""
        if self.bias is None:
            return None
        parts = self.bias.chunk(self._matrices)
        return torch.cat([from_halves(part, self.outputs, self.is_gated) for part in parts])

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle by way of the ordinary layout, as the others do."""
        given = ([self.weight()], self.whole_bias(), self._matrices, self.is_gated)
        return partial(PackedStack, dtype=self._dtype), given
