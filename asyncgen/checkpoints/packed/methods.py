"""Read the settings of each ``quant_method``: how a matrix is stored, and by what it is found.

Every key of a ``quantization_config`` is read here, or known to change no number, or refused by
its name. Which modules are quantised is not read but seen: their tensors say it.

Activations and the KV cache are never quantised here, so settings of theirs change no number.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from asyncgen.checkpoints.packed import part_shapes, schemes
from asyncgen.checkpoints.packed.compressed_settings import compressed
from asyncgen.checkpoints.packed.layouts import BYTES, FLOATS, WORDS, Layout, Scheme, float8_scheme
from asyncgen.checkpoints.packed.module_rules import ModuleRules
from asyncgen.checkpoints.packed.quantise import NF4_GROUP
from asyncgen.checkpoints.packed.raw_tensors import read_raw
from asyncgen.checkpoints.packed.stated_settings import Settings, UnknownSettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.checkpoints.packed.layouts import Parts

_MADE_BY_GPTQ: Final = frozenset(
    """
    quant_method act_group_aware auto_forward_data_parallel autoround_version backend batch_size
    block_name_to_quantize cache_block_outputs compile damp_auto_increment damp_percent dataset
    device disable_exllama enable_minmax_tuning enable_quanted_input exllama_config
    failsafe fallback gc_mode gptaq gradient_accumulate_steps hessian hyb_act is_awq iters lm_head
    low_gpu_mem_usage lr lr_scheduler max_input_length meta minmax_lr mock_quantization
    model_file_base_name model_name_or_path model_seqlen modules_in_block_to_quantize
    module_name_preceding_first_block mse nsamples offload_to_disk offload_to_disk_path pack_impl
    pad_token_id parallel_packing provider quant_nontext_module quantizer
    scale_dtype seed seqlen moe amp static_groups sym to_quant_block_names tokenizer true_sequential
    use_cuda_fp16 use_exllama use_triton v2 v2_alpha v2_memory_device version vram_strategy
    wait_for_submodule_finalizers act_bits act_data_type act_dynamic act_group_size act_sym
    """.split()
)
"""How GPTQModel, AutoGPTQ, AutoRound and Optimum came to the numbers, and how they would load them.
Zero points are stored whether ``sym`` or not."""

_MADE_BY_AWQ: Final = _MADE_BY_GPTQ - {"version", "backend"} | {
    "desc_act",
    "do_fuse",
    "fuse_max_seq_len",
    "ignore",
    "modules_to_fuse",
    "modules_to_not_convert",
}

_MADE_BY_BITSANDBYTES: Final = frozenset(
    """
    quant_method llm_int8_threshold llm_int8_skip_modules llm_int8_enable_fp32_cpu_offload
    llm_int8_has_fp16_weight
    """.split()
)
"""Columns of outliers are multiplied by the same unpacked numbers."""

_MADE_BY_FLOAT8: Final = frozenset(
    """
    quant_method activation_scale_ub dequantize ignore ignored_layers kv_cache_scheme
    kv_cache_quant_method modules_to_convert modules_to_not_convert
    """.split()
)

_MADE_BY_BITNET: Final = frozenset({"quant_method", "modules_to_not_convert", "rms_norm_eps"})

_MADE_BY_MXFP4: Final = frozenset({"quant_method", "dequantize", "modules_to_not_convert"})


def gptq(settings: Settings, tensors: Parts) -> Layout:
    """Read the settings of ``gptq``, and of each module that has others by ``dynamic``."""
    rules = ModuleRules(settings.get("dynamic"))
    return _ruled(settings, rules, "qweight", _gptq_scheme)


def _gptq_scheme(settings: Settings) -> Scheme:
    bits = settings.choice("bits", (4, 8), 4, also=("w_bit",))
    size = settings.size("group_size", 128, also=("q_group_size",))
    form = settings.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq", also=("format",))
    settings.choice("is_marlin_format", (False,))
    settings.choice("pack_dtype", ("int32", "torch.int32"))
    settings.choice("data_type", ("int",))
    settings.choice("enable_norm_bias_tuning", (False,))
    needed = {"qweight": WORDS, "qzeros": WORDS, "scales": FLOATS}
    if settings.choice("desc_act", (True, False)):
        needed["g_idx"] = ("I32", "I64")
    settings.finish(_MADE_BY_GPTQ)

    return Scheme(
        read=partial(schemes.gptq, bits=bits, size=size, is_second=form == "gptq_v2"),
        shapes=partial(part_shapes.gptq, bits=bits, size=size),
        needed=needed,
        others={"g_idx": ("I32", "I64")},
        bits=bits,
        size=size,
    )


def awq(settings: Settings, tensors: Parts) -> Layout:
    """Read the settings of ``awq``, and of each module that has others by ``dynamic``."""
    rules = ModuleRules(settings.get("dynamic"))
    return _ruled(settings, rules, "qweight", _awq_scheme)


def _awq_scheme(settings: Settings) -> Scheme:
    settings.choice("bits", (4,), 4, also=("w_bit",))
    size = settings.size("group_size", 128, also=("q_group_size",))
    settings.choice("version", ("gemm",), "gemm", also=("format", "checkpoint_format"))
    settings.choice("zero_point", (True,))
    settings.choice("backend", ("autoawq", "auto", "gemm"))
    settings.choice("pack_dtype", ("int32", "torch.int32"))
    settings.finish(_MADE_BY_AWQ)

    return Scheme(
        read=partial(schemes.awq, size=size),
        shapes=partial(part_shapes.awq, size=size),
        needed={"qweight": WORDS, "qzeros": WORDS, "scales": FLOATS},
        others={},
        bits=4,
        size=size,
    )


def _ruled(
    settings: Settings, rules: ModuleRules, marker: str, read: Callable[[Settings], Scheme]
) -> Layout:
    """Read the settings, and again with those of each rule in their place."""
    base = settings.all()
    otherwise = read(settings)
    by_rule: dict[str, Scheme] = {}
    for rule, own in rules.all.items():
        merged = Settings({**base, **own}, f"dynamic[{rule!r}]")
        merged.get("dynamic")
        by_rule[rule] = read(merged)

    def of(stem: str, parts: Parts) -> Scheme:
        rule = rules.of(stem)
        return otherwise if rule is None else by_rule[rule]

    return Layout(marker, of)


def bitsandbytes(settings: Settings, tensors: Parts) -> Layout:
    """Read the settings of ``bitsandbytes``, of 4 or 8 bits."""
    flags = (True, False)
    eight = settings.choice("load_in_8bit", flags, False, also=("_load_in_8bit",))
    four = settings.choice("load_in_4bit", flags, False, also=("_load_in_4bit",))
    if eight == four:
        settings.refuse("load_in_4bit", f"one of it and `load_in_8bit` must be true ({eight})")
    settings.choice("bnb_4bit_quant_type", ("nf4", "fp4"))
    settings.choice("bnb_4bit_use_double_quant", flags)
    storages = ("uint8", "int8", "float16", "bfloat16", "float32", "float64")
    settings.choice("bnb_4bit_quant_storage", storages)
    settings.choice("bnb_4bit_compute_dtype", ("float16", "bfloat16", "float32", "float64"))
    settings.finish(_MADE_BY_BITSANDBYTES)
    if eight:
        scheme = Scheme(
            read=schemes.bitsandbytes_eight,
            shapes=part_shapes.bitsandbytes_eight,
            needed={"weight": ("I8",), "SCB": FLOATS},
            others={"weight_format": ("U8",)},
            scales="SCB",
        )

        def of(stem: str, parts: Parts) -> Scheme:
            form = parts.get("weight_format")
            if form is not None and form.num_bytes == 1 and bool(read_raw(form).any()):
                raise UnknownSettingError(f"`{stem}.weight_format` is not 0, numbers by rows")
            return scheme

        return Layout("SCB", of)
    scheme = Scheme(
        read=schemes.bitsandbytes_four,
        shapes=part_shapes.bitsandbytes_four,
        needed={
            "weight": BYTES,
            "quant_state": ("U8",),
            "absmax": (*FLOATS, "U8"),
            "quant_map": FLOATS,
        },
        others={"nested_absmax": FLOATS, "nested_quant_map": FLOATS},
        bits=4,
        size=NF4_GROUP,
        scales="absmax",
    )
    return Layout("quant_state", lambda stem, parts: scheme)


def float8(settings: Settings, tensors: Parts) -> Layout:
    """Read the settings of ``fp8`` and ``fbgemm_fp8``: E4M3 by tensor, row or block."""
    settings.choice("fmt", ("e4m3", "float8_e4m3fn"))
    settings.choice("activation_scheme", ("dynamic", "static"))
    settings.choice("scale_fmt", ("float", "ue8m0"))
    settings.choice("expert_dtype", ("fp8",))
    blocks = [settings.block("weight_block_size")]
    if "weight_block_size" not in settings:
        blocks.append((128, 128))  # DeepSeek's, if scales are neither of a tensor nor of rows
    settings.finish(_MADE_BY_FLOAT8)
    is_inverse = any(name.endswith(".weight_scale_inv") for name in tensors)
    marker = "weight_scale_inv" if is_inverse else "weight_scale"
    scheme = float8_scheme(marker, blocks)
    return Layout(marker, lambda stem, parts: scheme)


def bitnet(settings: Settings, tensors: Parts) -> Layout:
    """Read the settings of ``bitnet``: numbers of three values, and a scale for each matrix."""
    kind = settings.choice("linear_class", ("bitlinear", "autobitlinear"), "bitlinear")
    settings.choice("quantization_mode", ("offline",), "offline")
    settings.choice("use_rms_norm", (False,))
    settings.finish(_MADE_BY_BITNET)
    scheme = Scheme(
        read=partial(schemes.three_values, is_divided=kind == "bitlinear"),
        shapes=part_shapes.three_values,
        needed={"weight": ("U8",), "weight_scale": FLOATS},
        others={},
        bits=4,
        scales="weight_scale",
    )
    return Layout("weight_scale", lambda stem, parts: scheme)


def check_mxfp4(settings: Settings) -> None:
    """Check the settings of ``mxfp4``, whose format has no variants.

    Raises:
        UnknownSettingError: One of them is not known.
    """
    settings.finish(_MADE_BY_MXFP4)


LAYOUTS: Final[Mapping[str, Callable[[Settings, Parts], Layout]]] = {
    "compressed-tensors": compressed,
    "gptq": gptq,
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "fp8": float8,
    "fbgemm_fp8": float8,
    "bitnet": bitnet,
}
"""The reader of each ``quant_method``; besides ``mxfp4``, which stores experts alone."""
