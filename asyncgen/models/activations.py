"""What feed-forwards bend their rows by, under the names that configurations give it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
"""What computes each; it may write to what it is given."""

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
"""What products of our own kernels call those that they may come with."""


class Xielu(nn.Module):
    """A square and a line above zero, an exponential below, of a learned shape each.

    Huang and Schlag, "Deriving Activation Functions Using Integration" (2024), section 3.

    Attributes:
        alpha_p: Before ``softplus``, what the square is multiplied by, ``[1]``.
        alpha_n: Before ``softplus``, what the exponential is multiplied by beyond beta, ``[1]``.
        beta: Slope at zero, a scalar.
        eps: Greatest argument of the exponential, a scalar.
    """

    alpha_p: Tensor
    alpha_n: Tensor
    beta: Tensor
    eps: Tensor

    def __init__(self, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised."""
        super().__init__()
        for name, shape in XIELU_PARAMETERS.items():
            parameter = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor) -> Tensor:
        """The activation of each element."""
        above = F.softplus(self.alpha_p)
        below = self.beta + F.softplus(self.alpha_n)
        bent = (torch.expm1(torch.minimum(x, self.eps)) - x) * below
        return torch.where(x > 0, above * x * x, bent) + self.beta * x


XIELU_PARAMETERS = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}
"""Shapes by name."""
