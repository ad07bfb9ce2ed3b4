"""Keep a model's forward pass out of ``torch.compile``: its own kernels compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable


def is_traced() -> bool:
    """Return True while ``torch.compile`` reads the code of a call.

    Raises:
        InvalidRequestError: ``torch.export`` does, which would write down one length of the cache.
    """
    if torch.compiler.is_exporting():
        allowed = (
            "the forward pass runs in kernels that a graph of torch's operators cannot hold; "
            "export the model with transformers, and generate with this library"
        )
        raise InvalidRequestError("torch.export", "forward", allowed)
    return torch.compiler.is_dynamo_compiling()


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that a compiled caller calls as it stands, with own kernels.

    No decorator: it imports the compiler, which takes seconds.
    """
    return torch.compiler.disable(function)  # type: ignore[no-untyped-call]
