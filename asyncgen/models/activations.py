"""Activation functions of feed-forwards, under the names that configurations use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asyncgen.models.kernels.parameter import Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _gelu_by_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": torch._C._nn.silu_,
    "swish": torch._C._nn.silu_,
    "gelu": F.gelu,
    "gelu_new": _gelu_by_tanh,
    "gelu_fast": _gelu_by_tanh,
    "gelu_pytorch_tanh": _gelu_by_tanh,
    "relu": torch.relu_,
    "relu2": lambda x: torch.relu_(x).square_(),
}
"""Function of each activation; it may overwrite its argument."""

FUSED: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""Names under which our own product kernels apply an activation, for those that they have."""


class Xielu(nn.Module):
    """xIELU: a square and a line above zero, an exponential below, with learned shapes.

    Huang and Schlag, "Deriving Activation Functions Using Integration" (2024), section 3.

    Attributes:
        alpha_p: Factor on the square, before ``softplus``, ``[1]``.
        alpha_n: Factor on the exponential beyond beta, before ``softplus``, ``[1]``.
        beta: Slope at zero, a scalar.
        eps: Largest argument of the exponential, a scalar.
    """

    alpha_p: Tensor
    alpha_n: Tensor
    beta: Tensor
    eps: Tensor

    def __init__(self, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised."""
        super().__init__()
        for name, shape in XIELU_PARAMETERS.items():
            parameter = Weight(torch.empty(shape, dtype=dtype))
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation to each element."""
        above = F.softplus(self.alpha_p)
        below = self.beta + F.softplus(self.alpha_n)
        bent = (torch.expm1(torch.minimum(x, self.eps)) - x) * below
        return torch.where(x > 0, above * x * x, bent) + self.beta * x


XIELU_PARAMETERS = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}
"""Shapes by name."""
