"""What a watermark is made with: plain values that go into a `GenerationConfig` and its file.

Imports no torch; a processor is made when one is asked for.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import torch

    from asyncgen.generation.watermarking.greenlist import WatermarkLogitsProcessor
    from asyncgen.generation.watermarking.synthid import SynthIDTextWatermarkLogitsProcessor

__all__ = [
    "SEEDING_SCHEMES",
    "BaseWatermarkingConfig",
    "SynthIDTextWatermarkingConfig",
    "WatermarkingConfig",
    "watermark_from",
]

SEEDING_SCHEMES = ("lefthash", "selfhash")

_LARGEST_TABLE = 2**24
_LONGEST_NGRAM = 64
_MOST_KEYS = 64
_LONGEST_HISTORY = 2**16
"""Far beyond what is of use; each costs every step of a row its time, and others that wait."""
_WORD = 2**64


class BaseWatermarkingConfig(ABC):
    """The forms that every watermarking configuration has; subclasses are dataclasses."""

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
        unknown = sorted(config_dict.keys() - set(known))
        if unknown:
            allowed = f"has unknown keys {unknown}; known are {known}"
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


@dataclass
class WatermarkingConfig(BaseWatermarkingConfig):
    """A watermark of favoured ("green") tokens.

    Kirchenbauer et al. 2023, arXiv 2301.10226 and 2306.04634.

    Attributes:
        greenlist_ratio: Share of the vocabulary that is green, strictly between 0 and 1.
        bias: Added to the scores of green tokens.
        hashing_key: Secret that the choice of green tokens depends on, below 2**64.
        seeding_scheme: "lefthash", where the last token decides which ones are green, or
            "selfhash", where the candidate itself has a say.
        context_width: Last tokens that have a say, at least 1.
    """

    greenlist_ratio: float = 0.25
    bias: float = 2.0
    hashing_key: int = 15485863
    seeding_scheme: str = "lefthash"
    context_width: int = 1

    def validate(self) -> None:
        """Check the fields.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        for name in ("greenlist_ratio", "bias"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _refused(name, value, "must be a number")
            if not (-_WORD < value < _WORD if isinstance(value, int) else math.isfinite(value)):
                raise _refused(name, value, "must be finite, and below 2**64")
        if not 0 < self.greenlist_ratio < 1:
            raise _refused("greenlist_ratio", self.greenlist_ratio, "must be above 0 and below 1")
        if self.seeding_scheme not in SEEDING_SCHEMES:
            allowed = f"must be one of {', '.join(SEEDING_SCHEMES)}"
            raise _refused("seeding_scheme", self.seeding_scheme, allowed)
        _check_integer("hashing_key", self.hashing_key, 0)
        _check_integer("context_width", self.context_width, 1)

    def construct_processor(
        self, vocab_size: int, device: str | torch.device
    ) -> WatermarkLogitsProcessor:
        """Make the processor that favours green tokens.

        Args:
            vocab_size: Tokens of the model.
            device: Where scores will be.
        """
        from asyncgen.generation.watermarking.greenlist import WatermarkLogitsProcessor

        return WatermarkLogitsProcessor(vocab_size, device, **self.to_dict())


@dataclass
class SynthIDTextWatermarkingConfig(BaseWatermarkingConfig):
    """A watermark by tournament sampling (Dathathri et al. 2024, Nature 634, 818-823).

    Attributes:
        ngram_len: Tokens of a hashed n-gram, the new one included; from 1 to 64.
        keys: Secrets, one for each layer of the tournament; at most 64, of 64 bits each.
        context_history_size: Contexts that are remembered, at most 2**16; one that recurs is not
            watermarked.
        sampling_table_seed: Seed of the table of g-values.
        sampling_table_size: Size of that table, below 2**24.
        skip_first_ngram_calls: Leave the first ``ngram_len - 1`` tokens without a watermark.
        debug_mode: Watermark a uniform distribution in place of the model's.
    """

    ngram_len: int
    keys: list[int]
    context_history_size: int = 1024
    sampling_table_seed: int = 0
    sampling_table_size: int = 2**16
    skip_first_ngram_calls: bool = False
    debug_mode: bool = False

    def validate(self) -> None:
        """Check the fields.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        _check_integer("ngram_len", self.ngram_len, 1, _LONGEST_NGRAM)
        _check_integer("context_history_size", self.context_history_size, 0, _LONGEST_HISTORY)
        _check_integer("sampling_table_seed", self.sampling_table_seed, 0)
        _check_integer("sampling_table_size", self.sampling_table_size, 1)
        if self.sampling_table_size >= _LARGEST_TABLE:
            raise _refused("sampling_table_size", self.sampling_table_size, "must be below 2**24")
        if not isinstance(self.keys, list | tuple) or not 1 <= len(self.keys) <= _MOST_KEYS:
            raise _refused("keys", self.keys, f"must be a list of 1 to {_MOST_KEYS} integers")
        for key in self.keys:
            _check_integer("keys", key, -_WORD // 2, _WORD // 2 - 1)

    def construct_processor(
        self, vocab_size: int, device: str | torch.device
    ) -> SynthIDTextWatermarkLogitsProcessor:
        """Make the processor that holds the tournament.

        Args:
            vocab_size: Not used: any vocabulary will do.
            device: Where scores will be.
        """
        from asyncgen.generation.watermarking.synthid import SynthIDTextWatermarkLogitsProcessor

        return SynthIDTextWatermarkLogitsProcessor(**self.to_dict(), device=device)


def watermark_from(value: Any) -> BaseWatermarkingConfig:
    """Take a watermarking configuration in any of its forms.

    Args:
        value: An object of ours or of the reference, or a dict of the fields of either kind;
            ``keys`` tells which.

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
        kind: type[BaseWatermarkingConfig] = WatermarkingConfig
        if "keys" in values or "ngram_len" in values:
            kind = SynthIDTextWatermarkingConfig
        value = kind.from_dict(values)
    value.validate()
    return value


def _refused(name: str, value: object, allowed: str) -> InvalidRequestError:
    return InvalidRequestError(f"watermarking_config.{name}", value, allowed)


def _check_integer(name: str, value: object, least: int, most: int = _WORD - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refused(name, value, "must be an integer")
    if value < least:
        raise _refused(name, value, f"must be at least {least}")
    if value > most:
        raise _refused(name, value, f"must be at most {most}")
