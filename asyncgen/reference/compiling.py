"""Keep a model's forward pass out of ``torch.compile``, and write it down for ``torch.export``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


def is_traced() -> bool:
    """Return True while ``torch.compile`` or ``torch.export`` reads the code of a call."""
    return torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting()


def traced(model: Any, given: Mapping[str, Any]) -> Any:
    """Compute the forward pass of a model whose caller is compiled or exported.

    A compiled caller calls it as it stands, with its own kernels.

    Args:
        model: The model.
        given: All arguments of its ``forward`` by name.

    Raises:
        InvalidRequestError: The model, or an argument, cannot be exported.
    """
    if torch.compiler.is_exporting():
        from asyncgen.reference.exporting import exported_forward

        return exported_forward(model, given)
    # No decorator: it imports the compiler, which takes seconds.
    function = torch.compiler.disable(type(model).forward)  # type: ignore[no-untyped-call]
    return function(model, **given)
