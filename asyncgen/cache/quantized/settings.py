"""Settings of quantised caches, checked as documented."""

from __future__ import annotations

import copy
import json
import operator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from asyncgen.cache.quantized.backends import BACKENDS
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping


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
        """Return the settings by name."""
        return copy.deepcopy(vars(self))

    def to_json_string(self) -> str:
        """Return the settings as JSON with a final newline; a dtype becomes its name."""
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
        """Yield names and values, so that ``dict(config)`` is `to_dict`."""
        return iter(self.to_dict().items())


@dataclass
class QuantizedCacheConfig(CacheConfig):
    """Settings of a quantised cache.

    Attributes:
        backend: ``"quanto"`` (affine, between the least and the greatest number of a group),
            ``"HQQ"`` (half-quadratic: outliers weigh less), both computed here without the
            packages of those names; or ``"fp8"`` (floating point numbers of 8 bits with one scale),
            which takes none of the next five.
        nbits: Bits of a number: 2 or 4 with quanto; 1, 2, 3, 4 or 8 with HQQ.
        axis_key: Grouping of keys: with quanto 0 (neighbours of a position) or -1 (positions of a
            channel); with HQQ 1 (neighbours) or 0 (numbers far from each other).
        axis_value: The same for values.
        q_group_size: Numbers of a group, at least 1: a divisor of the model's hidden dimension, or
            of what is grouped. If groups do not come out even, the last is filled up with its last
            number.
        residual_length: Positions behind the quantised ones at which everything is quantised anew;
            the newest positions, fewer than these, are kept exactly.
        compute_dtype: Dtype of keys and values when they are read, before they join the newest ones
            in the model's dtype; a dtype or its name. ``None``: the model's.
        device: Device of quantised numbers; they come to the model when they are read. ``None``:
            the model's.
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
        """Check what holds for every backend; a cache checks the rest when it is made.

        Raises:
            InvalidRequestError: A number is out of range, or there is no such backend.
        """
        if not isinstance(self.backend, str) or self.backend.lower() not in (*BACKENDS, "fp8"):
            raise InvalidRequestError("backend", self.backend, "`quanto`, `HQQ` or `fp8`")
        self._check((1, 2, 3, 4, 8), (0, 1, -1), "")
        for name, least in (("q_group_size", 1), ("residual_length", 0)):
            value = getattr(self, name)
            if not _is_whole(value) or value < least:
                raise InvalidRequestError(name, value, f"a whole number, at least {least}")
        for name, is_right in (("compute_dtype", _is_dtype), ("device", _is_device)):
            if not is_right(getattr(self, name)):
                allowed = f"the name of a {name.removeprefix('compute_')} of torch, or None"
                raise InvalidRequestError(name, getattr(self, name), allowed)

    def validate_for(self, backend: str) -> None:
        """Check everything, for a cache of one backend.

        Raises:
            InvalidRequestError: A setting is out of range, or is none of this backend.
        """
        self.validate()
        if backend.lower() == "fp8":
            _refuse_groups(
                {
                    field.name: getattr(self, field.name)
                    for field in fields(self)
                    if getattr(self, field.name) != field.default
                }
            )
            return
        found = BACKENDS[backend.lower()]
        self._check(found.bits, found.axes, f" with `{backend}`")

    def _check(self, bits: tuple[int, ...], axes: tuple[int, ...], where: str) -> None:
        for name, allowed in (("nbits", bits), ("axis_key", axes), ("axis_value", axes)):
            value = getattr(self, name)
            if not _is_whole(value) or value not in allowed:
                one_of = f"one of {', '.join(map(str, allowed))}{where}"
                raise InvalidRequestError(name, value, one_of)


def read_settings(
    given: Mapping[str, Any] | QuantizedCacheConfig | None,
) -> QuantizedCacheConfig:
    """Read the settings of a ``cache_config``.

    Args:
        given: Settings by name, ``None`` for those that are not given, or the settings themselves.
            Missing ones have their documented defaults, but for `compute_dtype` and `device`, which
            are the model's.

    Raises:
        InvalidRequestError: It names an unknown setting, or one is out of range.
    """
    if given is None or isinstance(given, dict):
        there = {name: value for name, value in (given or {}).items() if value is not None}
        names = [field.name for field in fields(QuantizedCacheConfig)]
        for name in there.keys() - names:
            allowed = f"has no setting `{name}`; there are {', '.join(names)}"
            raise InvalidRequestError("cache_config", given, allowed)
        if str(there.get("backend")).lower() == "fp8":
            _refuse_groups(there)
        given = QuantizedCacheConfig(**{"compute_dtype": None, "device": None} | there)
    if not isinstance(given, QuantizedCacheConfig):
        allowed = "a dict of settings, or a `QuantizedCacheConfig`"
        raise InvalidRequestError("cache_config", given, allowed)
    given.validate()
    given.validate_for(given.backend)
    return given


def _refuse_groups(given: Mapping[str, Any]) -> None:
    """Refuse settings of groups for ``fp8``, which has one scale for all numbers."""
    for name in ("nbits", "axis_key", "axis_value", "q_group_size", "residual_length"):
        if name in given:
            allowed = "`fp8` has one scale and no groups; leave it out, or take `quanto` or `HQQ`"
            raise InvalidRequestError(name, given[name], allowed)


def _is_whole(value: Any) -> bool:
    try:
        return operator.index(value) is not None and not isinstance(value, bool)
    except TypeError:
        return False


def _is_dtype(value: object) -> bool:
    return value is None or isinstance(value, torch.dtype) and value.is_floating_point


def _is_device(value: object) -> bool:
    if value is None or isinstance(value, torch.device):
        return True
    try:
        return isinstance(value, str) and bool(torch.device(value))
    except RuntimeError:
        return False


def _name_of(value: object) -> str:
    """Return the name of a dtype, for JSON.

    Raises:
        TypeError: It is no dtype.
    """
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    raise TypeError(f"{value!r} cannot be written as JSON; settings are numbers, texts and dtypes")
