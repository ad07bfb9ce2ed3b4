"""Linear layers and look-up tables: one module per weight, laid out for the fastest kernel."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from asyncgen.models.kernels.half_product import half_bytes
from asyncgen.models.kernels.native_linear import widens
from asyncgen.models.kernels.native_packed import PackedLinearKernel, PackedStack, supports_packed
from asyncgen.models.kernels.parameter import Weight, num_writes
from asyncgen.models.kernels.products import (
    DenseKernel,
    choose_kernel,
    kernel_in_place,
    prefers_half_product,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.models.kernels.packed_weight import PackedWeight
    from asyncgen.models.kernels.products import Kernel


class Linear(nn.Module):
    """Compute ``x @ weight.T + bias`` without gradients.

    The weight is an ordinary parameter until `prepare` has laid it out for its kernel; from then on
    ``weight`` is ``None`` and `dense_weight` gives it back.

    Attributes:
        dtype: Dtype of rows and products.
        weight: ``[out_features, in_features]``, or ``None`` once prepared; of any floating dtype.
        bias: ``[out_features]``, or ``None``.
        kernel: Kernel that computes; replaced by `prepare`.
        is_in_place: True if it computes with the weight in place, and `prepare` leaves it alone.
        is_packable: True if it takes weights in 4 and 8 bits.
    """

    is_packable = True

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        dtype: torch.dtype | None = None,
        gates: bool = False,
        activation: str | None = None,
    ) -> None:
        """Make the parameters, uninitialised, on the current default device.

        Args:
            in_features: Size of an input row.
            out_features: Size of an output row.
            bias: True to add a bias.
            dtype: Of weight, bias, rows and products; ``None``: torch's default.
            gates: True if the outputs are a gate's and, behind them, the up-projection's: a kernel
                may join them, see `choose_kernel`.
            activation: Activation of the gate or the product, which a kernel may apply.
        """
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.gates = gates
        self.activation = activation
        self.dtype = dtype = dtype or torch.get_default_dtype()
        self.weight = Weight(torch.empty(out_features, in_features, dtype=dtype))
        self.register_parameter(
            "bias", Weight(torch.empty(out_features, dtype=dtype)) if bias else None
        )
        self.kernel: Kernel | None = None
        self.is_in_place = False
        self._tied = False
        self._bias_writes = 0  # when the kernel was made

    def keeps(self, stored: torch.dtype) -> bool:
        """Return whether the weight may stay in a file's dtype because its kernel widens it."""
        return widens(stored, self.dtype)

    @property
    def packs(self) -> bool:
        """True if a kernel multiplies by packed weights here; elsewhere they come unpacked."""
        return supports_packed(self.dtype)

    @property
    def needs_alike(self) -> bool:
        """True if parts that are not alike are unpacked."""
        return bool(self.gates)

    def pack(self, parts: Sequence[PackedWeight]) -> None:
        """Take packed weights, one below the other, in the place of the weight; `packs` is true.

        A gate and an up-projection that are not alike are unpacked.

        Args:
            parts: On the CPU, of all outputs together.
        """
        if self.gates and not all(part.is_like(parts[0]) for part in parts):
            self.weight = Weight(torch.cat([one.dequantise().to(self.dtype) for one in parts]))
            self.prepare()
            return
        self.weight = None
        self._bias_writes = num_writes(self.bias)
        self.kernel = PackedLinearKernel(
            parts, _detached(self.bias), self.gates, dtype=self.dtype, activation=self.activation
        )

    def share(self, kernel: PackedLinearKernel) -> None:
        """Compute with the packed table of an embedding, as a tied head does."""
        self._tied, self.kernel = True, kernel

    def prepare(self) -> None:
        """Lay the weight out for its kernel and free the original; idempotent.

        Call it once weight and bias are loaded, on the thread that will compute, and again after
        the bias was written to. A weight that is still on the meta device is left alone.
        """
        self.follow_bias()
        weight = self.weight
        if weight is None or weight.is_meta or self.is_in_place:
            return
        self.weight = None
        self._bias_writes = num_writes(self.bias)
        self.kernel = choose_kernel(
            weight.detach(),
            _detached(self.bias),
            dtype=self.dtype,
            gates=self.gates,
            activation=self.activation,
        )

    def follow_bias(self) -> None:
        """Give the kernel up if it may hold a copy of what the bias was before a write."""
        kernel: Any = self.kernel
        if kernel is None or self._tied or num_writes(self.bias) == self._bias_writes:
            return
        if isinstance(kernel, (PackedLinearKernel, PackedStack)):
            self.pack(kernel.parts())
        else:
            self.weight, self.kernel = Weight(kernel.dense()), None

    def tie(self, table: Tensor, *, own_copy: bool) -> None:
        """Compute with another module's weight.

        Args:
            table: ``[out_features, in_features]``, of any floating dtype.
            own_copy: True to lay out a copy for the fastest kernel; otherwise the table is used in
                place, if it is in the dtype of the rows.
        """
        self._tied = True
        if own_copy:
            self.kernel = choose_kernel(table, None, dtype=self.dtype, is_shared=True)
        else:
            self.kernel = kernel_in_place(table.to(self.dtype), None)

    def compute_in_place(self) -> None:
        """Make the weight an ordinary parameter again, and compute with that; idempotent."""
        self.is_in_place = True
        if self.weight is None and not self._tied:
            self.weight = Weight(self.dense_weight())
            self.kernel = None

    def forward(self, x: Tensor) -> Tensor:
        """Multiply ``[..., in_features]``, to a new tensor ``[..., out_features]``."""
        return self.product()(x.reshape(-1, self.in_features)).view(*x.shape[:-1], -1)

    @property
    def adds_bias(self) -> bool:
        """True if `product` adds a bias to its kernel's: a tied weight may have been laid out
        before the bias was there."""
        return self._tied and self.bias is not None

    def product(self) -> Callable[[Tensor], Tensor]:
        """Return the function that multiplies rows ``[N, in_features]``, with the weights as
        they are now."""
        product = self.ready().product
        bias = _detached(self.bias) if self.adds_bias else None
        return product if bias is None else lambda x: product(x).add_(bias)

    def ready(self) -> Kernel:
        """Return the kernel; one on the plain weight if `prepare` was not called yet."""
        if self.weight is not None:
            return DenseKernel(self.weight.detach().to(self.dtype).t(), _detached(self.bias))
        assert self.kernel is not None, "a linear layer without weight cannot compute"
        return self.kernel

    def dense_weight(self) -> Tensor:
        """Return the weight ``[out_features, in_features]`` in `dtype`; a copy if the kernel's
        differs."""
        return self.ready().dense().to(self.dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Linear:
        # `model.to(...)` reaches parameters only, so the weight becomes one for a moment.
        packed = self.weight is None and self.kernel is not None and not self._tied
        kernel = self.kernel
        if packed and isinstance(kernel, PackedLinearKernel) and _stays(fn, self.dtype):
            return self
        if packed:
            self.weight = Weight(self.ready().dense())
            self.kernel = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device="cpu")).dtype
        if packed:
            self.prepare()
        elif self._tied:
            self.kernel = None
        return self


class Embedding(nn.Module):
    """Look-up table whose storage may differ in dtype from its results.

    Attributes:
        weight: ``[num_embeddings, features]``, of any floating dtype.
        dtype: Dtype of the rows given out.
        is_packable: As that of `Linear`.
    """

    is_packable = True

    weight: nn.Parameter

    def __init__(
        self, num_embeddings: int, features: int, *, dtype: torch.dtype | None = None
    ) -> None:
        """Make the table, uninitialised, on the current default device."""
        super().__init__()
        self.dtype = dtype or torch.get_default_dtype()
        self.weight = Weight(torch.empty(num_embeddings, features, dtype=self.dtype))
        self._table: Tensor | None = None
        self.kernel: PackedLinearKernel | None = None

    @property
    def device(self) -> torch.device:
        """Device of the table."""
        return self.weight.device

    @property
    def packs(self) -> bool:
        """See `Linear.packs`."""
        return supports_packed(self.dtype)

    @property
    def needs_alike(self) -> bool:
        """See `Linear.needs_alike`: a table has one part."""
        return False

    def pack(self, parts: Sequence[PackedWeight]) -> None:
        """Take a packed table in the place of ``weight``, which is empty from now on.

        Args:
            parts: One, on the CPU, ``[num_embeddings, features]``; `packs` is true.
        """
        (table,) = parts
        self.kernel = PackedLinearKernel([table], None, dtype=self.dtype)
        self.weight = Weight(torch.empty(0, table.inputs, dtype=self.dtype, device="cpu"))

    def unpack(self) -> None:
        """Make a packed table an ordinary parameter again; idempotent."""
        if self.kernel is not None:
            self.weight, self.kernel = Weight(self.dense_weight()), None
            self._table = None

    def dense_weight(self) -> Tensor:
        """Return the table ``[num_embeddings, features]``; a copy in `dtype` if it is packed."""
        weight = self.weight.detach()
        return weight if self.kernel is None else self.kernel.dense().to(self.dtype)

    def keeps(self, stored: torch.dtype) -> bool:
        """Return whether the table may stay in a file's dtype: if products may as well."""
        return widens(stored, self.dtype)

    def prepare(self) -> None:
        """Use a newly loaded table."""
        self._table = self.weight.detach()

    def lookup(self, ids: Tensor) -> Tensor:
        """Look up rows of ids ``[N]`` (int64), as a new tensor ``[N, features]``."""
        if self.kernel is not None:
            return self.kernel.look_up(ids)
        table = self._table
        if table is None:
            table = self._table = self.weight.detach()
        rows = table.index_select(0, ids)
        return rows if rows.dtype is self.dtype else rows.to(self.dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids of any shape ``[...]``, as ``[..., features]``."""
        return self.lookup(ids.reshape(-1)).view(*ids.shape, -1)

    def _apply(self, fn: Any, recurse: bool = True) -> Embedding:
        if self.kernel is not None and _stays(fn, self.dtype):
            return self
        self.unpack()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device="cpu")).dtype
        self._table = None
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.kernel is not None:
            destination[f"{prefix}weight"] = self.dense_weight()
        destination[f"{prefix}weight"] = destination[f"{prefix}weight"].to(self.dtype)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.unpack()
        # Loaded numbers are copied into the table, whose dtype may have fewer bits.
        if self.weight.dtype != self.dtype:
            self.weight = Weight(self.weight.detach().to(self.dtype))
        super()._load_from_state_dict(*args)
        self._table = None


def half_head_pays(core: Any) -> bool:
    """Return whether a head in 16 bits beside its table takes no more memory than other weights
    save.

    Args:
        core: A model with ``lm_head``, none of whose weights have arrived.
    """
    head = core.lm_head
    if not prefers_half_product(head.dtype):
        return False
    layers = [module for module in core.modules() if type(module) is Linear and module is not head]
    sizes = [(layer.out_features, layer.in_features) for layer in layers]
    saved = sum(max(4 * prod(size) - half_bytes(*size), 0) for size in sizes)
    table = head.out_features, head.in_features
    return half_bytes(*table) - 2 * prod(table) <= saved


def _detached(parameter: nn.Parameter | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()


def _stays(fn: Any, dtype: torch.dtype) -> bool:
    """Return whether a packed weight stays as it is: device and dtype do not change."""
    moved: Tensor = fn(torch.empty(0, dtype=dtype, device="cpu"))
    return moved.device.type == "cpu" and moved.dtype == dtype
