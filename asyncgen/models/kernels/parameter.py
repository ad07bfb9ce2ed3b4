"""The parameters of our modules: tensors that count every write to them."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from torch import Tensor, nn
from torch.autograd.graph import increment_version

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION: Final = attrgetter("_version")
"""How often a tensor was written to in place; an error for those of inference mode."""


class Weight(nn.Parameter):
    """Parameter that asks for no gradient and counts writes through ``data``, too.

    Modules compute with what they made of their parameters, and make it anew when the count of a
    parameter (``_version``) has grown. Torch does not count what is written to its ``data``.
    """

    def __new__(cls, tensor: Tensor, requires_grad: bool = False) -> Weight:
        """Share the memory of a tensor."""
        return super().__new__(cls, tensor, requires_grad)

    @property
    def data(self) -> Tensor:
        """The same memory as a plain tensor; writes to it are counted."""
        return self.detach()

    @data.setter
    def data(self, tensor: Tensor) -> None:
        nn.Parameter.data.__set__(self, tensor)  # type: ignore[attr-defined]
        increment_version(self)


def counting_writes(module: nn.Module) -> tuple[nn.Parameter, ...]:
    """List the parameters of a module that count writes.

    Those of inference mode do not; outside of that mode nobody may write to them.
    """
    return tuple(each for each in module.parameters() if not each.is_inference())


def all_writes(parameters: Iterable[Tensor]) -> int:
    """Return how often any of some parameters was written to in place.

    Those that were replaced by tensors of inference mode have no count, and are followed no more.
    """
    try:
        return sum(map(VERSION, parameters))
    except RuntimeError:
        return sum(map(num_writes, parameters))


def num_writes(parameter: Tensor | None) -> int:
    """Return how often a parameter was written to in place; 0 if there is none, or no count."""
    return 0 if parameter is None or parameter.is_inference() else parameter._version
