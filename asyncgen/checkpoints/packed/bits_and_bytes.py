"""Accept the documented `BitsAndBytesConfig`, as an object or a dict.

NF4 and FP4 are those of bitsandbytes: its tables, and a scale for each 64 numbers. In 8 bits, each
32 inputs have a scale, where bitsandbytes has one for a row: errors are smaller.
"""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any, Final, Self

import torch

from asyncgen.checkpoints.packed.packing_request import PackingRequest
from asyncgen.errors import InvalidRequestError, clip, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.checkpoints.packed.quantise import Packing

_TABLES: Final = ("fp4", "nf4")

_STORAGES: Final = ("uint8", "int8", "float16", "bfloat16", "float32", "float64")
_COMPUTES: Final = _STORAGES[2:]

_NOTES: Final = ("_load_in_8bit", "_load_in_4bit")
"""Keys of a saved configuration that repeat others."""


class BitsAndBytesConfig:
    """Request to pack weights while a model is loaded.

    All matrices are packed but tables of embeddings, the head and routers, which stay as stored.

    Attributes:
        load_in_8bit: Pack to 8 bits.
        load_in_4bit: Pack to 4 bits.
        llm_int8_skip_modules: Modules that stay as stored, in 4 bits too; ``None``: the head.
        bnb_4bit_compute_dtype: Dtype of the computation if ``dtype`` is not given; float32, unless
            it is given: that of the checkpoint.
        bnb_4bit_quant_type: Table of 4 bits.
        quant_method: ``"bitsandbytes"``.
    """

    def __init__(
        self,
        load_in_8bit: bool = False,
        load_in_4bit: bool = False,
        llm_int8_threshold: float = 6.0,
        llm_int8_skip_modules: list[str] | None = None,
        llm_int8_enable_fp32_cpu_offload: bool = False,
        llm_int8_has_fp16_weight: bool = False,
        bnb_4bit_compute_dtype: torch.dtype | str | None = None,
        bnb_4bit_quant_type: str = "fp4",
        bnb_4bit_use_double_quant: bool = False,
        bnb_4bit_quant_storage: torch.dtype | str | None = None,
    ) -> None:
        """Check the arguments.

        Args:
            load_in_8bit: See the attribute; one of both at most.
            load_in_4bit: See the attribute.
            llm_int8_threshold: Accepted: inputs are not rounded to 8 bits, so no outliers exist.
            llm_int8_skip_modules: Names of modules, such as ``"lm_head"``: the ends of names, or
                regular expressions of their beginnings, up to a dot.
            llm_int8_enable_fp32_cpu_offload: Accepted: the model stays on one device.
            llm_int8_has_fp16_weight: ``False``.
            bnb_4bit_compute_dtype: See the attribute.
            bnb_4bit_quant_type: ``"fp4"`` or ``"nf4"``.
            bnb_4bit_use_double_quant: Accepted: scales stay floats, so errors are smaller.
            bnb_4bit_quant_storage: Accepted: it is the dtype of stored bytes.

        Raises:
            InvalidRequestError: A value is not allowed.
        """
        self.load_in_8bit = _switch("load_in_8bit", load_in_8bit)
        self.load_in_4bit = _switch("load_in_4bit", load_in_4bit)
        if load_in_4bit and load_in_8bit:
            raise InvalidRequestError("load_in_4bit", True, "`load_in_8bit` is set; choose one")
        if bnb_4bit_quant_type not in _TABLES:
            raise InvalidRequestError(
                "bnb_4bit_quant_type", bnb_4bit_quant_type, f"use one of {list(_TABLES)}"
            )
        if _switch("llm_int8_has_fp16_weight", llm_int8_has_fp16_weight):
            raise InvalidRequestError("llm_int8_has_fp16_weight", True, "weights are not trained")
        if isinstance(llm_int8_threshold, bool) or not isinstance(llm_int8_threshold, int | float):
            raise InvalidRequestError("llm_int8_threshold", llm_int8_threshold, "give a number")
        self.quant_method = "bitsandbytes"
        self.llm_int8_threshold = llm_int8_threshold
        self.llm_int8_skip_modules = _names("llm_int8_skip_modules", llm_int8_skip_modules)
        self.llm_int8_enable_fp32_cpu_offload = _switch(
            "llm_int8_enable_fp32_cpu_offload", llm_int8_enable_fp32_cpu_offload
        )
        self.llm_int8_has_fp16_weight = llm_int8_has_fp16_weight
        computed = _dtype("bnb_4bit_compute_dtype", bnb_4bit_compute_dtype, _COMPUTES)
        self.bnb_4bit_compute_dtype = torch.float32 if computed is None else computed
        self._computed = computed
        self.bnb_4bit_quant_type = bnb_4bit_quant_type
        self.bnb_4bit_use_double_quant = _switch(
            "bnb_4bit_use_double_quant", bnb_4bit_use_double_quant
        )
        stored = _dtype("bnb_4bit_quant_storage", bnb_4bit_quant_storage, _STORAGES)
        self.bnb_4bit_quant_storage = torch.uint8 if stored is None else stored

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Read a configuration as `to_dict` gives it, and as a ``config.json`` holds it.

        Args:
            config_dict: Arguments by their names.

        Raises:
            InvalidRequestError: A key or a value is not allowed.
        """
        given = dict(config_dict)
        method = given.pop("quant_method", "bitsandbytes")
        if str(getattr(method, "value", method)) != "bitsandbytes":
            raise InvalidRequestError("quant_method", method, "use 'bitsandbytes'")
        for note in _NOTES:
            name = note.removeprefix("_")
            if note in given and given.setdefault(name, given[note]) != given[note]:
                raise InvalidRequestError(name, given[name], f"`{note}` is {shorten(given[note])}")
            given.pop(note, None)
        for name, value in given.items():
            if name not in _ARGUMENTS:
                allowed = f"`BitsAndBytesConfig` takes {sorted(_ARGUMENTS)}"
                raise InvalidRequestError(name, value, allowed)
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return all arguments by their names; dtypes as texts."""
        found = {name: copy.copy(getattr(self, name)) for name in ("quant_method", *_ARGUMENTS)}
        for name in ("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"):
            found[name] = str(found[name]).removeprefix("torch.")
        return found

    def __repr__(self) -> str:
        """Show all arguments."""
        return f"{type(self).__name__} {json.dumps(self.to_dict(), indent=2, sort_keys=True)}\n"

    def is_quantizable(self) -> bool:
        """Return whether weights are packed."""
        return self.load_in_8bit or self.load_in_4bit

    def quantization_method(self) -> str | None:
        """Return ``"llm_int8"``, ``"fp4"``, ``"nf4"``, or ``None``: nothing is packed."""
        if self.load_in_8bit:
            return "llm_int8"
        return self.bnb_4bit_quant_type if self.load_in_4bit else None

    def packing(self) -> tuple[PackingRequest | None, torch.dtype | None]:
        """Return the request, and the dtype of the computation if it was given."""
        method = self.quantization_method()
        if method is None:
            return None, None
        skipped = self.llm_int8_skip_modules
        request = PackingRequest(
            {"llm_int8": "int8", "nf4": "nf4"}.get(method, "fp4"),  # type: ignore[arg-type]
            is_reference=True,
            skipped=None if skipped is None else tuple(skipped),
        )
        return request, None if method == "llm_int8" else self._computed


_ARGUMENTS: Final = (
    "load_in_8bit",
    "load_in_4bit",
    "llm_int8_threshold",
    "llm_int8_skip_modules",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "bnb_4bit_quant_storage",
)


def packing_asked(
    config: Any, load_in_8bit: bool | None, load_in_4bit: bool | None, quantize: Packing | None
) -> tuple[PackingRequest | None, torch.dtype | None]:
    """Combine all arguments for packing; return the packing and the dtype of the computation.

    Args:
        config: A `BitsAndBytesConfig`, also that of transformers, its dict, or ``None``.
        load_in_8bit: Older argument, as ``load_in_4bit``.
        load_in_4bit: See ``load_in_8bit``.
        quantize: Argument of this library.

    Raises:
        InvalidRequestError: They contradict each other, or ``config`` is of another class.
    """
    asked: list[tuple[str, PackingRequest]] = []
    dtype = None
    if config is not None:
        request, dtype = _read(config).packing()
        if request is not None:
            asked.append(("quantization_config", request))
    if load_in_8bit:
        asked.append(("load_in_8bit", PackingRequest("int8", is_reference=True)))
    if load_in_4bit:
        asked.append(("load_in_4bit", PackingRequest("fp4", is_reference=True)))
    if quantize is not None:
        asked.append(("quantize", PackingRequest(quantize)))
    for name, request in asked[1:]:
        first, other = asked[0]
        if request.kind != other.kind:
            value = quantize if name == "quantize" else True
            raise InvalidRequestError(name, value, f"`{first}` says {other.codes}; give one")
    return (asked[0][1] if asked else None), dtype


def _read(config: Any) -> BitsAndBytesConfig:
    if isinstance(config, BitsAndBytesConfig):
        return config
    allowed = "give a `BitsAndBytesConfig`; weights packed otherwise are read as they are"
    if isinstance(config, dict):
        flags = ("load_in_8bit", "load_in_4bit", *_NOTES)
        if config.get("quant_method") == "bitsandbytes" or any(map(config.get, flags)):
            return BitsAndBytesConfig.from_dict(config)
        raise InvalidRequestError("quantization_config", config, allowed)
    if type(config).__name__ != BitsAndBytesConfig.__name__:
        raise InvalidRequestError("quantization_config", type(config).__name__, allowed)
    return BitsAndBytesConfig.from_dict(config.to_dict())


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(name, value, "use True or False")
    return value


def _dtype(name: str, value: object, allowed: tuple[str, ...]) -> torch.dtype | None:
    if value is None:
        return None
    named = str(value).removeprefix("torch.") if isinstance(value, str | torch.dtype) else ""
    if named not in allowed:
        raise InvalidRequestError(name, value, f"use one of {list(allowed)}")
    found: torch.dtype = getattr(torch, named)
    return found


def _names(name: str, value: object) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise InvalidRequestError(name, value, "give a list of names of modules")
    for one in value:
        try:
            re.compile(one)
        except (re.error, RecursionError, OverflowError) as error:
            reason = f"no regular expression: {clip(str(error), 120)}"
            raise InvalidRequestError(name, one, reason) from error
    return list(value)
