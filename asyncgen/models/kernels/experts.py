"""Mixture of experts: a feed-forward of which each token uses a few of many.

Shazeer and others, "Outrageously Large Neural Networks" (2017), with a gated feed-forward in each
expert. A step's tokens are grouped by expert, so that a weight is read once for all tokens that
chose it. The router computes in float32, in any model.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asyncgen import native
from asyncgen.families.plans.experts_plan import MOST_EXPERTS
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.native_linear import NativeKernel, NativeStack, widens
from asyncgen.models.kernels.native_packed import PackedStack
from asyncgen.models.kernels.parameter import Weight, num_writes
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.kernels.routing import choose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.families.plans.experts_plan import ExpertsPlan, GatePlan
    from asyncgen.models.kernels.packed_weight import PackedWeight

PLAIN_GATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def pass_gate(plan: GatePlan, gate: Tensor, up: Tensor) -> Tensor:
    """Multiply ``up`` by the activated gate; both are ``[..., width]``."""
    if plan.kind != "clamped":
        return PLAIN_GATES[plan.kind](gate) * up
    gate, up = gate.clamp(max=plan.limit), up.clamp(-plan.limit, plan.limit)
    return (up + 1) * gate * torch.sigmoid(plan.alpha * gate)


def activate(plan: GatePlan, wide: Tensor) -> Tensor:
    """Activate a first product ``[..., width]``, twice as wide if there is a gate."""
    if not plan.is_gated:
        return PLAIN_GATES[plan.kind](wide)
    return pass_gate(plan, *wide.chunk(2, dim=-1))


class DenseStack:
    """Several weights ``[out, in]`` for torch's products, and their biases.

    Attributes:
        weight: ``[matrices, out, in]``.
        bias: ``[matrices, out]``, or ``None``.
    """

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, matrices: int) -> None:
        """Share the weights ``[matrices * out, in]`` and biases with their owner."""
        self.weight = weight.view(matrices, -1, weight.shape[1])
        self.bias = None if bias is None else bias.view(matrices, -1)

    def product(self, x: Tensor, ids: Tensor, ends: Tensor) -> Tensor:
        """Multiply rows ``[P, in]``, each by the weight of its expert, to ``[P, out]``.

        Args:
            x: The rows, those of the first expert before those of the second.
            ids: Each row's expert, ``[P]``, int64.
            ends: End of each expert's rows, ``[matrices]``, int32.
        """
        if x.is_cuda and x.dtype == torch.bfloat16 and _fits_grouped(self.weight):
            found = torch._grouped_mm(x, self.weight.transpose(1, 2), offs=ends)
        else:
            found = x.new_empty(x.shape[0], self.weight.shape[1])
            first = 0
            for matrix, end in zip(self.weight, ends.tolist(), strict=True):
                if end > first:
                    torch.mm(x[first:end], matrix.t(), out=found[first:end])
                first = end
        return found if self.bias is None else found.add_(self.bias.index_select(0, ids))

    def dense(self) -> Tensor:
        """Give the weights, ``[matrices * out, in]``."""
        return self.weight.flatten(0, 1)


def _fits_grouped(weight: Tensor) -> bool:
    """Return whether CUDA's grouped product takes weights ``[matrices, out, in]``: lines of 16
    bytes."""
    is_aligned = all(size * weight.itemsize % 16 == 0 for size in weight.shape[1:])
    return is_aligned and torch.cuda.get_device_capability(weight.device) >= (9, 0)


class Stack(Linear):
    """Weights ``[out, in]`` of one projection of all experts, one below the other.

    Attributes:
        weight: ``[matrices * out, in]`` (a file may have ``[matrices, out, in]``), or ``None`` once
            prepared.
        bias: ``[matrices * out]`` (or ``[matrices, out]``), or ``None``.
    """

    def __init__(
        self,
        matrices: int,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        dtype: torch.dtype,
        gates: bool = False,
    ) -> None:
        """Make the parameters, uninitialised, on the current default device.

        Args:
            matrices: Number of experts.
            in_features: Size of an input row.
            out_features: Size of an output row.
            bias: True if each has a bias.
            dtype: Of all parameters, rows and products.
            gates: True if the outputs are a gate's and, behind them, the up-projection's.
        """
        super().__init__(in_features, matrices * out_features, bias, dtype=dtype, gates=gates)
        self.matrices = matrices

    def prepare(self) -> None:
        """See `Linear.prepare`."""
        self.follow_bias()
        if self.weight is None or self.weight.is_meta:
            return
        weight = self.weight.detach().view(-1, self.in_features)
        self.weight = None
        self._bias_writes = num_writes(self.bias)
        bias = self._bias()
        is_here = weight.device.type == "cpu"
        if not (is_here and widens(weight.dtype, self.dtype)):
            weight = weight.to(self.dtype)
        made: Any
        if is_here and native.supports(self.dtype) and self.matrices <= MOST_EXPERTS:
            made = NativeStack(weight, bias, self.matrices, self.gates, self.dtype)
        else:
            made = DenseStack(weight.contiguous(), bias, self.matrices)
        self.kernel = made

    @property
    def needs_alike(self) -> bool:
        """See `Linear.needs_alike`."""
        return True

    def pack(self, parts: Sequence[PackedWeight]) -> None:
        """See `Linear.pack`; experts that are not alike are unpacked."""
        is_one = all(part.is_like(parts[0]) for part in parts)
        if not is_one or parts[0].order is not None or self.matrices > MOST_EXPERTS:
            whole = torch.cat([part.dequantise().to(self.dtype) for part in parts])
            self.weight = Weight(whole)
            self.prepare()
            return
        self.weight = None
        self._bias_writes = num_writes(self.bias)
        made: Any = PackedStack(parts, self._bias(), self.matrices, self.gates, dtype=self.dtype)
        self.kernel = made

    def ready(self) -> Any:
        """Return the prepared weights; plain ones if `prepare` was not called yet."""
        if self.weight is not None:
            weight = self.weight.detach().view(-1, self.in_features)
            return DenseStack(weight.to(self.dtype), self._bias(), self.matrices)
        return self.kernel

    def _bias(self) -> Tensor | None:
        return None if self.bias is None else self.bias.detach().flatten()


class Exact(nn.Module):
    """A tensor that keeps the dtype of its file, usually float32, so that no choice changes by
    rounding.

    Attributes:
        weight: Usually a vector.
    """

    weight: nn.Parameter

    def __init__(self, *shape: int) -> None:
        """Make the tensor, uninitialised, on the current default device."""
        super().__init__()
        empty = torch.empty(shape, dtype=torch.float32)
        self.weight = Weight(empty)

    @property
    def saved_dtype(self) -> torch.dtype:
        """Dtype in which it is saved."""
        return self.weight.dtype

    def keeps(self, stored: torch.dtype) -> bool:
        """Return whether it keeps a stored dtype: any floating one."""
        return stored.is_floating_point


class Router(Linear):
    """Product that gives the logits of experts, in float32 or more."""

    is_packable = False  # rounding could change a choice

    def __init__(
        self, in_features: int, experts: int, bias: bool = False, *, dtype: torch.dtype
    ) -> None:
        """Make the parameters; ``dtype`` is that of the model."""
        wide = torch.promote_types(dtype, torch.float32)
        super().__init__(in_features, experts, bias, dtype=wide)

    def keeps(self, stored: torch.dtype) -> bool:
        """Return whether the weight may stay as stored: always, it is not narrowed."""
        return stored.is_floating_point

    def prepare(self) -> None:
        """See `Linear.prepare`."""
        if self.bias is not None and self.bias.dtype != self.dtype:
            self.bias = Weight(self.bias.detach().to(self.dtype))
        super().prepare()

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        wide = torch.promote_types(self.dtype, torch.float32)
        if wide != self.dtype:
            self.weight = Weight(self.dense_weight().to(wide))
            self.dtype = wide
            self.prepare()
        return self


class Experts(Prepared):
    """Feed-forward of experts, and the shared expert that every token passes through.

    Attributes:
        router: Logits of the experts; behind them the logit of the shared expert's gate, if there
            is one.
        correction: Added to scores for the choice, or ``None``.
        enter: Makes the rows that experts take, if these differ from the stream, or ``None``.
        gate_up: First projection of all experts: gate and, behind it, up-projection; or without a
            gate.
        down: Second projection of all experts.
        leave: Leads back to the stream, or ``None``.
        shared_gate_up: First projection of the shared expert, or ``None``.
        shared_down: Second one.
    """

    def __init__(self, hidden: int, plan: ExpertsPlan, *, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised, on the current default device.

        Args:
            hidden: Size of a row.
            plan: Plan of the experts.
            dtype: Of the parameters but the router's.
        """
        super().__init__()
        self.plan = plan
        count, width, shared = plan.experts, plan.width, plan.shared_width
        inner, parts, gates = plan.latent or hidden, plan.gate.parts, plan.gate.is_gated
        self.router = Router(
            hidden, count + plan.is_shared_gated, plan.has_router_bias, dtype=dtype
        )
        self.correction = Exact(count) if plan.is_corrected else None
        self.enter = Linear(hidden, inner, dtype=dtype) if plan.latent else None
        self.gate_up = Stack(count, inner, parts * width, plan.has_bias, dtype=dtype, gates=gates)
        self.down = Stack(count, width, inner, plan.has_bias, dtype=dtype)
        self.leave = Linear(inner, hidden, dtype=dtype) if plan.latent else None
        self.shared_gate_up = self.shared_down = None
        if shared:
            self.shared_gate_up = Linear(
                hidden, parts * shared, dtype=dtype, gates=gates, activation=plan.gate.kind
            )
            self.shared_down = Linear(shared, hidden, dtype=dtype)

    def prepare(self) -> None:
        """Gather what `add_to` uses; call it again after weights were replaced or moved."""
        plan, gate_up, down = self.plan, self.gate_up.ready(), self.down.ready()
        router = self.router.ready()
        correction = None
        if self.correction is not None:
            correction = self.correction.weight.detach().to(self.router.dtype).flatten()
        if isinstance(gate_up, NativeStack | PackedStack) and isinstance(
            down, NativeStack | PackedStack
        ):
            assert native.kernels is not None and isinstance(router, NativeKernel)
            beside = self.enter, self.leave, self.shared_gate_up, self.shared_down
            kernels: list[Any] = [None if one is None else one.ready() for one in beside]
            enter, leave, shared_gate_up, shared_down = (one and one.compiled for one in kernels)
            compiled = native.kernels.Experts(
                router.compiled,
                gate_up.compiled,
                down.compiled,
                routing={**asdict(plan.routing), "correction": correction},
                gate=plan.gate.kind,
                alpha=plan.gate.alpha,
                limit=plan.gate.limit,
                enter=enter,
                leave=leave,
                shared_gate_up=shared_gate_up,
                shared_down=shared_down,
                is_shared_gated=plan.is_shared_gated,
            )
            self._plan = (compiled.add_to, compiled)
            return
        self._plan = (lambda stream, x: self._add_plainly(stream, x, correction), None)

    def add_chosen(self, stream: Tensor, x: Tensor, ids: Tensor, weights: Tensor) -> None:
        """Add the results of experts that were chosen before; the router is not asked.

        There is no shared expert.

        Args:
            stream: Changed in place, ``[N, E]``.
            x: The rows, ``[N, E]``.
            ids: Each row's experts, ``[N, chosen]``, int64.
            weights: Their weights, ``[N, chosen]``, float32.
        """
        compiled = self.compiled
        if compiled is None:
            stream.add_(self._weighed(x, ids, weights))
        else:
            compiled.add_chosen(stream, x, ids.to(torch.int32), weights.contiguous())

    @property
    def compiled(self) -> Any | None:
        """The kernel, if all of it is ours."""
        return self._ready()[1]

    def add_to(self, stream: Tensor, x: Tensor) -> None:
        """Add the experts' results for rows ``x`` ``[N, E]`` to ``stream`` ``[N, E]`` in place."""
        self._ready()[0](stream, x)

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """Write the experts' results for rows to ``out``, and return it."""
        self.add_to(out.zero_(), x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Compute the experts' results for ``[..., E]``, as a new tensor of that shape."""
        rows = x.reshape(-1, x.shape[-1])
        return self.into(rows, torch.empty_like(rows)).view(x.shape)

    def _add_plainly(self, stream: Tensor, x: Tensor, correction: Tensor | None) -> None:
        """Do `add_to` by torch's operators; on CUDA without waiting for the device, in bfloat16."""
        routing, count = self.plan.routing, self.plan.experts
        logits = self.router.ready().product(x.to(self.router.dtype))  # [N, X]
        ids, weights = choose(routing, logits[:, :count], correction)  # [N, C]
        total = self._weighed(x, ids, weights)
        if self.shared_gate_up is not None and self.shared_down is not None:
            shared = self._shared(x)
            if self.plan.is_shared_gated:
                shared = shared.to(total.dtype) * logits[:, count:].sigmoid()
            total += shared
        stream.add_(total)

    def _weighed(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Add up the chosen experts' results for rows ``[N, E]``, in the dtype of the weights."""
        routing, count = self.plan.routing, self.plan.experts
        sorted_ids, order = ids.flatten().sort(stable=True)  # pairs, by experts
        x = x if self.enter is None else self.enter.ready().product(x)
        every = torch.arange(count, dtype=torch.int64, device=x.device)
        ends = torch.searchsorted(sorted_ids, every, right=True, out_int32=True)
        rows = x.index_select(0, order // routing.chosen)  # [P, E]
        if routing.weighs_inputs:
            rows = rows * weights.flatten()[order, None].to(rows.dtype)
            weights = torch.ones_like(weights)
        activated = activate(self.plan.gate, self.gate_up.ready().product(rows, sorted_ids, ends))
        found = self.down.ready().product(activated, sorted_ids, ends)
        results = torch.empty_like(found).index_copy_(0, order, found)
        results = results.view(x.shape[0], routing.chosen, -1)  # [N, C, E]
        total = (results.to(weights.dtype) * weights[..., None]).sum(1)
        if self.leave is None:
            return total
        return self.leave.ready().product(total.to(found.dtype)).to(total.dtype)

    def _shared(self, x: Tensor) -> Tensor:
        """Compute the shared expert's results for rows ``[N, E]``."""
        assert self.shared_gate_up is not None and self.shared_down is not None
        kernel = self.shared_gate_up.ready()
        activated = kernel.product(x)
        if kernel.activation is None:
            activated = activate(self.plan.gate, activated)
        return self.shared_down.ready().product(activated)
