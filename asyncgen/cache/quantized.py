"""Quantised caches: their settings, and why there are none.

The settings are checked as documented. The caches themselves are those of two other packages,
which this library does not wrap; asking for one is an error that says so.
"""

from __future__ import annotations

import copy
import importlib.util
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.errors import InvalidRequestError, MissingRequirementsError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator


_PACKAGES = {"quanto": ("optimum", "optimum-quanto"), "hqq": ("hqq", "hqq")}
_ALLOWED = {"quanto": ((2, 4), (0, -1)), "hqq": ((1, 2, 3, 4, 8), (0, 1))}
"""Bits and axes of each backend."""


@dataclass
class CacheConfig:
    """Settings of a cache.

    Attributes:
        cache_implementation: Name of the kind of cache.
    """

    cache_implementation: str | None = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """Make settings from a dict; ``kwargs`` that are settings win over it.

        Raises:
            TypeError: The dict has a key that is no setting.
        """
        names = {field.name for field in fields(cls)}
        return cls(**config_dict | {name: kwargs[name] for name in names & kwargs.keys()})

    def to_dict(self) -> dict[str, Any]:
        """The settings by name."""
        return copy.deepcopy(vars(self))

    def to_json_string(self) -> str:
        """The settings as JSON with a final newline; a dtype becomes its name."""
        return json.dumps(self.to_dict(), indent=2, default=_name_of) + "\n"

    def to_json_file(self, json_file_path: str | os.PathLike[str]) -> None:
        """Write the settings to a file, as `to_json_string` but sorted by name."""
        text = json.dumps(self.to_dict(), indent=2, default=_name_of, sort_keys=True) + "\n"
        Path(json_file_path).write_text(text, encoding="utf-8")

    def update(self, **kwargs: Any) -> dict[str, Any]:
        """Set the settings that exist; return the other keywords."""
        used = vars(self).keys() & kwargs.keys()
        for name in used:
            setattr(self, name, kwargs[name])
        return {name: value for name, value in kwargs.items() if name not in used}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Names and values, so that ``dict(config)`` is `to_dict`."""
        return iter(self.to_dict().items())


@dataclass
class QuantizedCacheConfig(CacheConfig):
    """Settings of a quantised cache.

    Attributes:
        backend: ``"quanto"`` or ``"HQQ"``.
        nbits: Bits of a number: 2 or 4 with quanto; 1, 2, 3, 4 or 8 with HQQ.
        axis_key: Axis along which keys are grouped: 0 or -1 with quanto, 0 or 1 with HQQ.
        axis_value: The same for values.
        q_group_size: Numbers of a group.
        residual_length: Newest positions that stay as they are.
        compute_dtype: What keys and values become again, or its name.
        device: Where they lie.
    """

    # Not one of the settings here: the kind is given by the class.
    cache_implementation: ClassVar[str | None] = "quantized"  # type: ignore[misc]
    backend: str = "quanto"
    nbits: int | None = 4
    axis_key: int | None = 0
    axis_value: int | None = 0
    q_group_size: int | None = 64
    residual_length: int | None = 128
    compute_dtype: torch.dtype | None = torch.float16
    device: str | None = "cpu"

    def __post_init__(self) -> None:
        """Read the name of a dtype, as JSON has it."""
        found = getattr(torch, str(self.compute_dtype), None)
        if isinstance(found, torch.dtype):
            self.compute_dtype = found

    def validate(self) -> None:
        """Check what holds for both backends; a cache checks the rest when it is made.

        Raises:
            InvalidRequestError: A number is out of range, or there is no such backend.
        """
        if self.backend.lower() not in _PACKAGES:
            raise InvalidRequestError("backend", self.backend, "`quanto` or `HQQ`")
        self._check((1, 2, 3, 4, 8), (0, 1, -1), "")
        for name, least in (("q_group_size", 1), ("residual_length", 0)):
            value = getattr(self, name)
            if value is None or value < least:
                raise InvalidRequestError(name, value, f"a number, at least {least}")

    def validate_for(self, backend: str) -> None:
        """Check everything, for a cache of one backend.

        Raises:
            InvalidRequestError: A setting is out of range, or is none of this backend.
        """
        self.validate()
        self._check(*_ALLOWED[backend.lower()], f" with `{backend}`")

    def _check(self, bits: tuple[int, ...], axes: tuple[int, ...], where: str) -> None:
        for name, allowed in (("nbits", bits), ("axis_key", axes), ("axis_value", axes)):
            if getattr(self, name) not in allowed:
                one_of = f"one of {', '.join(map(str, allowed))}{where}"
                raise InvalidRequestError(name, getattr(self, name), one_of)


def _name_of(value: object) -> str:
    """The name of a dtype, for JSON.

    Raises:
        TypeError: It is no dtype.
    """
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    raise TypeError(f"{value!r} cannot be written as JSON; settings are numbers, texts and dtypes")


def refuse_quantized(backend: str) -> NoReturn:
    """Say what a quantised cache would need.

    Raises:
        MissingRequirementsError: The backend's package is not installed.
        InvalidRequestError: It is, but this library does not use it; or there is no such backend.
    """
    module, package = _PACKAGES.get(backend.lower(), (None, None))
    if module is None:
        raise InvalidRequestError("backend", backend, "`quanto` or `HQQ`")
    if importlib.util.find_spec(module) is None:
        raise MissingRequirementsError(
            f"`cache_implementation` is 'quantized': the `{backend}` backend needs the package "
            f"{package}, which is not installed; use `dynamic`, `offloaded` or `static`"
        )
    raise InvalidRequestError(
        "cache_implementation",
        "quantized",
        f"this library computes nothing with {package}; use `dynamic`, `offloaded` or `static`",
    )


class QuantizedCache(DynamicCache):
    """The documented base of quantised caches; making one is refused."""

    _backend: ClassVar[str | None] = None
    """Whose cache it is, whatever the settings name; ``None``: that of the settings."""

    def __init__(self, cache_config: QuantizedCacheConfig) -> None:
        """Check the settings, then refuse.

        Args:
            cache_config: The settings.

        Raises:
            InvalidRequestError: A setting is out of range, or the backend is not used here.
            MissingRequirementsError: The backend's package is not installed.
        """
        backend = self._backend or cache_config.backend
        cache_config.validate_for(backend)
        refuse_quantized(backend)


class QuantoQuantizedCache(QuantizedCache):
    """A cache quantised by `quanto`, whatever the settings name; see `QuantizedCache`."""

    _backend = "quanto"


class HQQQuantizedCache(QuantizedCache):
    """A cache quantised by `HQQ`, whatever the settings name; see `QuantizedCache`."""

    _backend = "HQQ"
