"""Use pydantic models and dataclasses as the classes of parsed answers."""

from __future__ import annotations

import dataclasses
from typing import Any

from asyncgen.errors import InvalidRequestError

NEEDS_PYDANTIC = "needs the package `pydantic`: pip install 'asyncgen[structured]'"


def adapter_of(model: Any) -> Any:
    """Return pydantic's adapter of a class: its schema and its checks.

    Raises:
        InvalidRequestError: The class is not supported, or pydantic is not installed.
    """
    try:
        from pydantic import BaseModel, TypeAdapter
        from pydantic.errors import PydanticUserError
    except ImportError as error:
        raise InvalidRequestError("response_model", model, NEEDS_PYDANTIC) from error
    is_class = isinstance(model, type)
    if not is_class or not (issubclass(model, BaseModel) or dataclasses.is_dataclass(model)):
        raise InvalidRequestError("response_model", model, "a pydantic model or a dataclass")
    try:
        return TypeAdapter(model)
    except (PydanticUserError, NameError) as error:
        raise InvalidRequestError("response_model", model, f"it has no schema: {error}") from error
