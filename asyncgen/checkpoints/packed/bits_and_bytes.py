"""Accept the documented `BitsAndBytesConfig`.

Weights are packed to the 4 or 8 bits of this library (`asyncgen.checkpoints.packed.quantise`),
whatever the codes of bitsandbytes: errors are no larger, and its kernels are not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    import torch

    from asyncgen.checkpoints.packed.quantise import Packing

_CODES: Final = ("fp4", "nf4")


class BitsAndBytesConfig:
    """Request to pack weights while a model is loaded.

    Attributes:
        load_in_8bit: Pack to 8 bits.
        load_in_4bit: Pack to 4 bits.
        bnb_4bit_compute_dtype: Dtype of the computation if ``dtype`` is not given.
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
            llm_int8_threshold: Accepted: each group of inputs has its scale, so no outliers exist.
            llm_int8_skip_modules: ``None``: the embeddings and the head have 8 bits.
            llm_int8_enable_fp32_cpu_offload: Accepted.
            llm_int8_has_fp16_weight: ``False``.
            bnb_4bit_compute_dtype: See the attribute.
            bnb_4bit_quant_type: ``"fp4"`` or ``"nf4"``: accepted, the codes are this library's.
            bnb_4bit_use_double_quant: Accepted: scales have 16 bits.
            bnb_4bit_quant_storage: Accepted: it is the dtype of stored bytes.

        Raises:
            InvalidRequestError: A value is not allowed.
        """
        if load_in_4bit and load_in_8bit:
            raise InvalidRequestError("load_in_4bit", True, "`load_in_8bit` is set; choose one")
        if bnb_4bit_quant_type not in _CODES:
            raise InvalidRequestError(
                "bnb_4bit_quant_type", bnb_4bit_quant_type, f"use one of {list(_CODES)}"
            )
        if llm_int8_skip_modules:
            raise InvalidRequestError(
                "llm_int8_skip_modules", llm_int8_skip_modules, "all matrices are packed: leave it"
            )
        if llm_int8_has_fp16_weight:
            raise InvalidRequestError("llm_int8_has_fp16_weight", True, "weights are not trained")
        self.load_in_8bit, self.load_in_4bit = bool(load_in_8bit), bool(load_in_4bit)
        self.llm_int8_threshold = llm_int8_threshold
        self.llm_int8_skip_modules = llm_int8_skip_modules
        self.llm_int8_enable_fp32_cpu_offload = llm_int8_enable_fp32_cpu_offload
        self.llm_int8_has_fp16_weight = llm_int8_has_fp16_weight
        self.bnb_4bit_compute_dtype = bnb_4bit_compute_dtype
        self.bnb_4bit_quant_type = bnb_4bit_quant_type
        self.bnb_4bit_use_double_quant = bnb_4bit_use_double_quant
        self.bnb_4bit_quant_storage = bnb_4bit_quant_storage


def packing_asked(
    config: Any, load_in_8bit: bool | None, load_in_4bit: bool | None, quantize: Packing | None
) -> tuple[Packing | None, torch.dtype | str | None]:
    """Combine all arguments for packing; return the packing and the dtype of the computation.

    Args:
        config: A `BitsAndBytesConfig`, also that of transformers, or ``None``.
        load_in_8bit: Older argument, as ``load_in_4bit``.
        load_in_4bit: See ``load_in_8bit``.
        quantize: Argument of this library.

    Raises:
        InvalidRequestError: They contradict each other, or ``config`` is of another class.
    """
    asked: list[tuple[str, Packing]] = []
    dtype = None
    if config is not None:
        if type(config).__name__ != BitsAndBytesConfig.__name__:
            allowed = "give a `BitsAndBytesConfig`; weights packed otherwise are read as they are"
            raise InvalidRequestError("quantization_config", type(config).__name__, allowed)
        if config.load_in_8bit or config.load_in_4bit:
            packing: Packing = "int8" if config.load_in_8bit else "int4"
            asked.append(("quantization_config", packing))
            dtype = config.bnb_4bit_compute_dtype if config.load_in_4bit else None
    if load_in_8bit:
        asked.append(("load_in_8bit", "int8"))
    if load_in_4bit:
        asked.append(("load_in_4bit", "int4"))
    if quantize is not None:
        asked.append(("quantize", quantize))
    for name, value in asked[1:]:
        if value != asked[0][1]:
            first, other = asked[0]
            raise InvalidRequestError(name, value, f"`{first}` says {other}; give one")
    return (asked[0][1] if asked else None), dtype
