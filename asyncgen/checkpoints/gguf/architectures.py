"""Declare llama.cpp's architectures.

State layers are in `hybrid`, latent attention in `mla`, newer Gemmas in `gemma`, and further
architectures with experts in `moe`. Imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.gguf.declaration import BIASES, EXPERTS, GROUPED, Architecture
from asyncgen.checkpoints.gguf.gemma import GEMMAS
from asyncgen.checkpoints.gguf.hybrid import HYBRIDS
from asyncgen.checkpoints.gguf.mla import DEEPSEEK, KIMI, MINICPM3
from asyncgen.checkpoints.gguf.moe import MIXTURES
from asyncgen.checkpoints.gguf.t5 import T5

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.checkpoints.gguf.gguf_file import GgufModel

_FACTORS: Final[Mapping[str, str]] = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}

_WINDOW: Final = {"attention.sliding_window": "sliding_window"}
_ALL_BIASES: Final = {**BIASES, "mlp_bias": "blk.0.ffn_up.bias"}
_SLOPES, _STEEPEST = "attention.max_alibi_bias", 8
_XIELU: Final = {"shape": "xielu"}
_LEARNED: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    ".xielu.alpha_p": ("xielu.alpha_p", (1,)),
    ".xielu.alpha_n": ("xielu.alpha_n", (1,)),
    ".xielu.beta": ("xielu.beta", ()),
    ".xielu.eps": ("xielu.eps", ()),
}
"""Learned parameters of Apertus's activation."""
_NORM_AFTER: Final = {"post_norm": "post_attention_norm"}
_CAPS: Final = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def _llama(model: GgufModel) -> Mapping[str, Any]:
    """Llama, Mistral and Mixtral are one architecture of llama.cpp."""
    return {"model_type": "mixtral"} if model.own.whole("expert_count") else {}


def _own_rope(model: GgufModel) -> Mapping[str, Any]:
    """Set a plain rope in families that usually scale it."""
    if model.own.text("rope.scaling.type") not in (None, "none"):
        return {}
    theta = model.own.number("rope.freq_base") or 10_000.0
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def _olmo(model: GgufModel) -> Mapping[str, Any]:
    """OLMo 3 is OLMo 2 with windows in llama.cpp."""
    window = model.own.whole("attention.sliding_window")
    if not window:
        return {}
    own = model.own
    theta = own.number("rope.freq_base")
    local = own.number("rope.freq_base_swa") or theta
    ropes = {"full_attention": theta, "sliding_attention": local}
    return {
        "model_type": "olmo3",
        "sliding_window": window,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in ropes.items()
        },
    }


def _query_scalar(model: GgufModel) -> Mapping[str, Any]:
    """Derive the divisor of Gemma's scores, which no file contains: 27B has another one."""
    own = model.own
    layers, width = (own.whole(key) for key in ("block_count", "embedding_length"))
    heads = own.whole("attention.head_count")
    size = own.whole("attention.key_length")
    name = model.metadata.text("general.architecture")
    is_largest = (layers, name) in ((46, "gemma2"), (62, "gemma3"))
    scalar = width // heads if is_largest and width and heads else size
    return {"query_pre_attn_scalar": scalar}


def _gemma3(model: GgufModel) -> Mapping[str, Any]:
    local = model.own.number("rope.freq_base_swa") or 10_000.0
    return {**_query_scalar(model), "rope_local_base_freq": local}


def _parallel(model: GgufModel) -> Mapping[str, Any]:
    return {"use_parallel_residual": "blk.0.ffn_norm.weight" not in model.tensors}


def _neox(model: GgufModel) -> Mapping[str, Any]:
    return {"use_parallel_residual": model.own.flag("use_parallel_residual")}


def _falcon(model: GgufModel) -> Mapping[str, Any]:
    """The second generation of Falcon has two norms, or several key heads."""
    own = model.own
    heads = own.whole("attention.head_count_kv") or 1
    norms = 2 if "blk.0.attn_norm_2.weight" in model.tensors else 1
    if norms == 1 and heads == 1:
        return {"multi_query": True}
    return {
        "new_decoder_architecture": True,
        "num_kv_heads": heads,
        "num_ln_in_parallel_attn": norms,
    }


def _bigcode(model: GgufModel) -> Mapping[str, Any]:
    heads = model.own.whole("attention.head_count_kv")
    return {"multi_query": heads == 1}


def _steps(model: GgufModel) -> Mapping[str, Any]:
    """List the dense layers among those with experts."""
    layers = model.own.whole("block_count") or 0
    dense = [
        layer
        for layer in range(min(layers, 10_000))
        if f"blk.{layer}.ffn_gate_inp.weight" not in model.tensors
    ]
    return {"mlp_only_layers": dense}


def _granite(model: GgufModel) -> Mapping[str, Any]:
    width = model.own.whole("expert_shared_feed_forward_length")
    if not width:
        return {}
    return {"model_type": "granitemoeshared", "shared_intermediate_size": width}


def _clip(model: GgufModel) -> Mapping[str, Any]:
    return {"clip_qkv": model.own.number("attention.clamp_kqv") or None}


def _mpt(model: GgufModel) -> Mapping[str, Any]:
    """Refuse variants of MPT without ALiBi."""
    own = model.own
    for key, allowed in ((_SLOPES, _STEEPEST), ("attention.clamp_kqv", 0)):
        if (own.number(key) or 0) != allowed:
            raise own.bad(key, f"supported is {allowed}")
    return {}


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(
        "llama",
        {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        flags=_ALL_BIASES,
        turns_neighbours=True,
        more=_llama,
    ),
    "mistral3": Architecture("ministral3", turns_neighbours=True, more=_own_rope),
    "qwen2": Architecture("qwen2"),
    "qwen2moe": Architecture(
        "qwen2_moe",
        {**EXPERTS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        flags={"qkv_bias": "blk.0.attn_q.bias"},
        more=_steps,
    ),
    "qwen3": Architecture("qwen3", flags=BIASES),
    "qwen3moe": Architecture(
        "qwen3_moe",
        EXPERTS,
        {"norm_topk_prob": True},
        flags=BIASES,
        more=_steps,
    ),
    "gemma": Architecture("gemma", plus_one=True),
    "gemma2": Architecture("gemma2", {**_WINDOW, **_CAPS}, plus_one=True, more=_query_scalar),
    "gemma3": Architecture(
        "gemma3_text",
        {**_WINDOW, "final_logit_softcapping": "final_logit_softcapping"},
        plus_one=True,
        more=_gemma3,
    ),
    "phi2": Architecture("phi", has_parts=True),
    "phi3": Architecture("phi3", _WINDOW, has_parts=True),
    "gpt-oss": Architecture(
        "gpt_oss",
        {**_WINDOW, **EXPERTS},
        flags=BIASES,
        names=_NORM_AFTER,
        rope={"truncate": False},
        more=_own_rope,
    ),
    "olmo": Architecture("olmo", turns_neighbours=True, more=_clip),
    "olmo2": Architecture("olmo2", flags=BIASES, more=_olmo),
    "olmoe": Architecture("olmoe", EXPERTS, flags=BIASES, more=_clip),
    "starcoder": Architecture("gpt_bigcode", more=_bigcode),
    "starcoder2": Architecture("starcoder2", flags={"use_bias": "blk.0.attn_q.bias"}),
    "gpt2": Architecture("gpt2"),
    "gptneox": Architecture(
        "gpt_neox", flags={"attention_bias": "blk.0.attn_qkv.bias"}, has_parts=True, more=_neox
    ),
    "falcon": Architecture("falcon", more=_falcon),
    "bloom": Architecture("bloom"),
    "stablelm": Architecture(
        "stablelm", flags={"use_qkv_bias": "blk.0.attn_q.bias"}, has_parts=True, more=_parallel
    ),
    "granite": Architecture("granite", _FACTORS, flags=_ALL_BIASES, turns_neighbours=True),
    "granitemoe": Architecture(
        "granitemoe",
        {**_FACTORS, "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"},
        flags=BIASES,
        turns_neighbours=True,
        more=_granite,
    ),
    "command-r": Architecture(
        "cohere",
        {"logit_scale": "logit_scale"},
        flags={**BIASES, "use_qk_norm": "blk.0.attn_q_norm.weight"},
        turns_neighbours=True,
    ),
    "cohere2": Architecture(
        "cohere2",
        {**_WINDOW, "logit_scale": "logit_scale"},
        flags=BIASES,
        turns_neighbours=True,
    ),
    "smollm3": Architecture("smollm3", flags=_ALL_BIASES, turns_neighbours=True),
    "arcee": Architecture("arcee", flags=_ALL_BIASES, turns_neighbours=True),
    "nemotron": Architecture("nemotron", flags=_ALL_BIASES, plus_one=True, has_parts=True),
    "jais2": Architecture("jais2"),
    "exaone4": Architecture("exaone4", _WINDOW),
    "seed_oss": Architecture("seed_oss", flags=BIASES, names=_NORM_AFTER),
    "ernie4_5": Architecture("ernie4_5", turns_neighbours=True),
    "chatglm": Architecture("glm", flags=BIASES, turns_neighbours=True, has_parts=True),
    "glm4": Architecture("glm4", flags=BIASES, turns_neighbours=True, has_parts=True),
    "glm4moe": Architecture(
        "glm4_moe",
        GROUPED,
        {"first_k_dense_replace": 0},
        flags={**BIASES, "use_qk_norm": "blk.0.attn_q_norm.weight"},
        names=_NORM_AFTER,
        has_parts=True,
    ),
    "hunyuan-dense": Architecture("hunyuan_v1_dense"),
    "dots1": Architecture("dots1", GROUPED),
    "apertus": Architecture("apertus", flags=BIASES, names=_XIELU, numbers=_LEARNED),
    "mpt": Architecture("mpt", more=_mpt),
    "deepseek2": DEEPSEEK,
    "kimi-linear": KIMI,
    "minicpm3": MINICPM3,
    "t5": T5,
    **GEMMAS,
    **HYBRIDS,
    **MIXTURES,
}
"""Architectures by the name in ``general.architecture``."""
