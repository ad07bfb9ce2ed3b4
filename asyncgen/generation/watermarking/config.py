"""Share code among configurations of watermarks, which a `GenerationConfig` holds.

Each kind of watermark has its configuration in its own file, beside its processor.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from asyncgen.errors import InvalidRequestError, shorten
from asyncgen.runtime.exact_values import plain

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import torch


WORD = 2**64


class BaseWatermarkingConfig(ABC):
    """The forms that every watermarking configuration has; subclasses are dataclasses."""

    own_keys: ClassVar[frozenset[str]] = frozenset()
    """Fields that tell this kind from the others, where only a dict is given."""

    remembers: ClassVar[bool] = False
    """Whether its processor remembers its last call, and so wants one for each step."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep numbers and arrays of other libraries as plain numbers and lists."""
        object.__setattr__(self, name, plain(value, listed=True))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """Build from a dict.

        Args:
            config_dict: Fields by name.
            kwargs: Values that win over it; names that are no field are left out.

        Raises:
            InvalidRequestError: ``config_dict`` has a key that is no field, or lacks one.
        """
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        unknown = sorted(map(str, config_dict.keys() - set(known)))
        if unknown:
            allowed = f"has unknown keys {shorten(unknown)}; known are {known}"
            raise InvalidRequestError("watermarking_config", config_dict, allowed)
        values = config_dict | {name: kwargs[name] for name in known if name in kwargs}
        try:
            return cls(**values)
        except TypeError as error:
            raise InvalidRequestError("watermarking_config", values, str(error)) from error

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a new dict."""
        return {name: value for name, value in self}  # noqa: C416 (`keys` would mislead dict)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Iterate over pairs of field and value."""
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            yield field.name, list(value) if isinstance(value, list) else value

    def to_json_string(self) -> str:
        """Render as JSON with a final newline."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_json_file(self, json_file_path: str | os.PathLike[str]) -> None:
        """Write `to_json_string` to a file."""
        Path(json_file_path).write_text(self.to_json_string(), encoding="utf-8")

    def update(self, **kwargs: Any) -> None:
        """Set fields; names that are no field are left out."""
        for name, _ in self:
            if name in kwargs:
                setattr(self, name, kwargs[name])

    @abstractmethod
    def validate(self) -> None:
        """Check the fields.

        Raises:
            InvalidRequestError: One of them is out of range.
        """

    @abstractmethod
    def construct_processor(self, vocab_size: int, device: str | torch.device) -> Any:
        """Make the processor that puts the watermark in.

        Args:
            vocab_size: Tokens of the model.
            device: Where scores will be.
        """


def watermark_from(value: Any) -> BaseWatermarkingConfig:
    """Take a watermarking configuration in any of its forms.

    Args:
        value: An object of ours or of the reference, or a dict of the fields of either kind;
            `BaseWatermarkingConfig.own_keys` tells which.

    Returns:
        The configuration, checked.

    Raises:
        InvalidRequestError: It is neither, or out of range.
    """
    if not isinstance(value, BaseWatermarkingConfig):
        to_dict = getattr(value, "to_dict", None)
        values = to_dict() if callable(to_dict) else value
        if not isinstance(values, dict):
            allowed = "must be a WatermarkingConfig, a SynthIDTextWatermarkingConfig or a dict"
            raise InvalidRequestError("watermarking_config", value, allowed)
        kinds = BaseWatermarkingConfig.__subclasses__()
        named = [kind for kind in kinds if kind.own_keys & values.keys()]
        plain = [kind for kind in kinds if not kind.own_keys]
        value = (*named, *plain)[0].from_dict(values)
    value.validate()
    return value


def watermark_error(name: str, value: object, allowed: str) -> InvalidRequestError:
    return InvalidRequestError(f"watermarking_config.{name}", value, allowed)


def check_integer(name: str, value: object, least: int, most: int = WORD - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise watermark_error(name, value, "must be an integer")
    if value < least:
        raise watermark_error(name, value, f"must be at least {least}")
    if value > most:
        raise watermark_error(name, value, f"must be at most {most}")
