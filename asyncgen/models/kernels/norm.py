"""Normalisation of rows: by root mean square in as few passes as torch allows, and by layer.

On a CPU torch composes ``rms_norm`` of seven operators; a vector norm, a hypotenuse, a division and
a product give the same numbers in half the time: ``x / sqrt(mean(x²) + eps) = x · sqrt(n) /
hypot(‖x‖, sqrt(n · eps))``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from asyncgen import native
from asyncgen.families.plans.layer_plan import NormPlan
from asyncgen.models.kernels.parameter import Weight
from asyncgen.models.kernels.prepared import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable


class Norm(Prepared):
    """Scale rows by their own spread, then by a weight per feature.

    By their root mean square: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019),
    equation 4, with ``eps`` added to the mean square; the norm is taken in float32 in any dtype. By
    mean and variance: Ba, Kiros and Hinton, "Layer Normalization" (2016), equation 3, with ``eps``
    added to the variance.

    Attributes:
        weight: ``[features]``, or ``[heads, features]``; ``None``: all ones.
        bias: Of the same shape; ``None``: all zeros.
        features: Number of features that are normalised together.
        eps: Added to the square of the spread.
        plan: Kind of the norm.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        features: int,
        eps: float,
        plan: NormPlan = NormPlan(),  # noqa: B008
        *,
        heads: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the parameters, uninitialised, on the current default device.

        Args:
            features: Number of features that are normalised together.
            eps: Added to the square of the spread.
            plan: Kind of the norm.
            heads: Number of heads with weights of their own.
            dtype: Of the parameters.
        """
        super().__init__()
        self.eps = eps
        self.features = features
        self.plan = plan
        shape = (features,) if heads is None else (heads, features)
        self._shape = shape
        for name, is_there in (("weight", plan.has_weight), ("bias", plan.has_bias)):
            empty = torch.empty(shape, dtype=dtype) if is_there else None
            made = None if empty is None else Weight(empty)
            self.register_parameter(name, made)

    def prepare(self) -> None:
        """Derive what `scaler` computes with; call it again when the weight has changed."""
        if self.weight is None or not self.weight.is_meta:
            self._plan = self._make_scaler()

    @property
    def scaler(self) -> NativeScaler | Scaler | Unweighted | Centring:
        """The computation on the parameters as they were when prepared (or first used)."""
        if self._plan is None:
            self._plan = self._make_scaler()
        scaler: NativeScaler | Scaler | Unweighted | Centring = self._plan
        return scaler

    def scale(self) -> Tensor | None:
        """Return the factors: the weight plus the constant of the plan, in float32 if there is
        one."""
        if self.weight is None:
            return None
        weight = self.weight.detach().view(self._shape)  # files may have it in pieces
        if not self.plan.plus:
            return weight
        return weight.to(torch.promote_types(weight.dtype, torch.float32)) + self.plan.plus

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[..., features]`` into a new tensor."""
        rows = x.reshape(-1, self.features)
        return self.scaler.into(rows, torch.empty_like(rows)).view(x.shape)

    def _make_scaler(self) -> NativeScaler | Scaler | Unweighted | Centring:
        weight = self.scale()
        if self.plan.kind == "layer":
            bias = None if self.bias is None else self.bias.detach().view(self._shape)
            dtype = None if self.weight is None else self.weight.dtype
            return make_centring(weight, bias, self.features, self.eps, dtype)
        if self.weight is None or weight is None:
            return Unweighted(self._shape, self.eps)
        return make_scaler(weight, self.features, self.eps, self.weight.dtype)


def make_scaler(
    weight: Tensor, features: int, eps: float, dtype: torch.dtype | None = None
) -> NativeScaler | Scaler:
    """Make the arithmetic of a norm by the root mean square, also for several weights side by side.

    Args:
        weight: ``[features]``, or ``[heads, features]`` for rows ``[N, heads, features]``.
        features: Number of features that are normalised together.
        eps: Added to the mean square.
        dtype: Of the rows; ``None``: the weight's.
    """
    dtype = dtype or weight.dtype
    fits = weight.device.type == "cpu" and native.supports(dtype)
    return (NativeScaler if fits else Scaler)(weight, features, eps, dtype)


def make_centring(
    weight: Tensor | None,
    bias: Tensor | None,
    features: int,
    eps: float,
    dtype: torch.dtype | None = None,
) -> NativeScaler | Centring:
    """Make the arithmetic of a norm by mean and variance, also for several weights side by side.

    Args:
        weight: ``[features]``, or ``[heads, features]`` for rows ``[N, heads, features]``;
            ``None``: all ones.
        bias: Of the same shape; ``None``: all zeros.
        features: Number of features that are normalised together.
        eps: Added to the variance.
        dtype: Of the rows; ``None``: any.
    """
    if weight is None or dtype is None or weight.device.type != "cpu" or not native.supports(dtype):
        return Centring(weight, bias, eps, features)
    return NativeScaler(weight, features, eps, dtype, bias=bias, is_centred=True)


class NativeScaler:
    """The norm by our own kernel.

    Attributes:
        compiled: The kernel itself.
        into: As of `Scaler`.
    """

    __slots__ = ("compiled", "into")

    def __init__(
        self,
        weight: Tensor,
        features: int,
        eps: float,
        dtype: torch.dtype,
        *,
        bias: Tensor | None = None,
        is_centred: bool = False,
    ) -> None:
        """See `make_scaler`, and `make_centring` with ``is_centred``."""
        assert native.kernels is not None
        rows, summands = (
            None if each is None else each.float().contiguous().view(-1, features)
            for each in (weight, bias)
        )
        assert rows is not None
        self.compiled = native.kernels.Norm(
            rows, summands, eps=eps, dtype=dtype, is_centred=is_centred
        )
        # A step calls it directly, without a Python function around it.
        self.into: Callable[[Tensor, Tensor], Tensor] = self.compiled.into


class Scaler:
    """The norm in torch's operators.

    On a CPU short dtypes are normalised in float32 and rounded once: operators that convert their
    input take longer than a conversion and operators that do not.
    """

    __slots__ = ("_floor", "_is_widened", "_reduced", "_shrink", "_weight")

    def __init__(self, weight: Tensor, features: int, eps: float, dtype: torch.dtype) -> None:
        """Fold constants into weight and divisor; see `make_scaler`."""
        is_short = dtype not in (torch.float32, torch.float64)
        self._is_widened = is_short and weight.device.type == "cpu"
        self._reduced = is_short and not self._is_widened
        root = math.sqrt(features)
        # In float32 the factor sqrt(n) goes into the weight; in a shorter dtype that would round
        # the weight a second time, so there it goes into the divisor.
        wide = weight.float() if self._is_widened else weight
        self._weight = weight if self._reduced else wide * root
        floor = math.sqrt(eps if self._reduced else eps * features)
        kind = torch.float32 if is_short else dtype
        self._floor = torch.tensor(floor, dtype=kind, device=weight.device)
        self._shrink = torch.tensor(1 / root, dtype=kind, device=weight.device)

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """Normalise the rows of ``x`` into ``out`` of the same shape (it may be ``x`` itself)."""
        if self._reduced:
            norm = torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32)
            divisor = norm.mul_(self._shrink).hypot_(self._floor)
            return torch.div(x, divisor, out=out).mul_(self._weight)
        if self._is_widened:
            wide = x.float()
            divisor = torch.linalg.vector_norm(wide, 2, -1, True).hypot_(self._floor)
            return out.copy_(wide.div_(divisor).mul_(self._weight))
        divisor = torch.linalg.vector_norm(x, 2, -1, True).hypot_(self._floor)
        return torch.div(x, divisor, out=out).mul_(self._weight)


class Unweighted:
    """The norm by the root mean square without weights, for rows of any dtype and device."""

    __slots__ = ("_eps", "_kind", "_scaler", "_shape")

    def __init__(self, shape: tuple[int, ...], eps: float) -> None:
        """Keep the shape, ``[features]`` or ``[heads, features]``, and ``eps``."""
        self._shape, self._eps = shape, eps
        self._kind: tuple[torch.dtype, torch.device] | None = None

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """As of `Scaler`."""
        if self._kind != (x.dtype, x.device):
            ones = torch.ones(self._shape, dtype=x.dtype, device=x.device)
            self._scaler = make_scaler(ones, self._shape[-1], self._eps)
            self._kind = x.dtype, x.device
        return self._scaler.into(x, out)


class Centring:
    """The norm by mean and variance."""

    __slots__ = ("_bias", "_eps", "_shape", "_weight")

    def __init__(
        self, weight: Tensor | None, bias: Tensor | None, eps: float, features: int
    ) -> None:
        """Keep weight and bias, each ``[features]``, ``[heads, features]`` or ``None``.

        A weight that is wider than the rows computes in its own dtype.
        """
        self._weight, self._eps = weight, eps
        self._bias = bias if bias is None or weight is None else bias.to(weight.dtype)
        self._shape = (features,)

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """Normalise the rows of ``x`` into a new tensor; torch has no kernel that takes ``out``."""
        weight, bias = self._weight, self._bias
        if weight is not None and weight.dtype != x.dtype:
            # torch takes parameters that are wider than the rows on some devices only.
            return self.into(x.to(weight.dtype), out).to(x.dtype)
        if weight is None or weight.dim() == 1:
            return torch.layer_norm(x, self._shape, weight, bias, self._eps)
        normed = torch.layer_norm(x, self._shape, None, None, self._eps).mul_(weight)
        return normed if bias is None else normed.add_(bias)
