"""GGUF files made on the spot, with the package `gguf`: tiny models of families, and tokenizers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from safetensors.torch import load_file

from tests.checkpoints.gguf import making_gemmas, making_hybrids, making_mixtures, making_others

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ARCHITECTURES = {
    "llama": "llama",
    "mixtral": "llama",
    "ministral3": "mistral3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "gpt_oss": "gpt-oss",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "starcoder2": "starcoder2",
    "gpt2": "gpt2",
    "falcon": "falcon",
    "bloom": "bloom",
    "gpt_neox": "gptneox",
    "stablelm": "stablelm",
    "granite": "granite",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "smollm3": "smollm3",
    "nemotron": "nemotron",
    "exaone4": "exaone4",
    "glm4": "glm4",
    "olmo": "olmo",
    "seed_oss": "seed_oss",
    "hunyuan_v1_dense": "hunyuan-dense",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "youtu": "deepseek2",
    "internlm3": "llama",
    "iquestcoder": "llama",
    **making_gemmas.ARCHITECTURES,
    **making_hybrids.ARCHITECTURES,
    **making_mixtures.ARCHITECTURES,
    **making_others.ARCHITECTURES,
}
"""Families, and what llama.cpp calls them."""

_TURNED_IN_PAIRS = ("granitehybrid", "llama", "mistral3", "granite", "smollm3", "olmo")
_NAMED_ALREADY = ("blk.", "rope_freqs.")
_PLUS_ONE = ("gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron")
_KEYS = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "feed_forward_length": ("ffn_hidden_size", "n_inner", "intermediate_size"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "attention.scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "use_parallel_residual": ("use_parallel_residual",),
    "attention.clamp_kqv": ("clip_qkv",),
}
"""Metadata, and what ``config.json`` files call them."""


class Writer(gguf.GGUFWriter):  # type: ignore[misc]  # its package has no types
    """A writer of one file that takes any value."""

    def value(self, key: str, value: Any) -> None:
        """Add metadata, of the type that llama.cpp would use."""
        if isinstance(value, bool):
            self.add_bool(key, value)
        elif isinstance(value, int):
            self.add_uint32(key, value)
        elif isinstance(value, float):
            self.add_float32(key, value)
        elif isinstance(value, str):
            self.add_string(key, value)
        else:
            self.add_array(key, value)

    def finish(self) -> None:
        """Write everything."""
        self.write_header_to_file()
        self.write_kv_data_to_file()
        self.write_tensors_to_file()
        self.close()


def write_gguf(
    file: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    **options: Any,
) -> Path:
    """Write a file; tensors of bytes are of the kinds that are given."""
    writer = Writer(file, str(metadata.get("general.architecture", "llama")), **options)
    for key, value in metadata.items():
        if key != "general.architecture":
            writer.value(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor, raw_dtype=(kinds or {}).get(name))
    writer.finish()
    return file


def read_folder(folder: Path) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """The family, metadata and tensors of a checkpoint, as llama.cpp's converter makes them."""
    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
    name = ARCHITECTURES[family]
    if family in making_hybrids.ARCHITECTURES:
        name = making_hybrids.name_of(family, config)
    if config.get("use_bidirectional_attention") and family == "gemma3_text":
        name = "gemma-embedding"
    metadata: dict[str, Any] = {"general.architecture": name}
    for theirs, ours in _KEYS.items():
        found = [config[key] for key in ours if config.get(key) is not None]
        if found:
            metadata[f"{name}.{theirs}"] = found[0]
    metadata |= {f"{name}.{key}": value for key, value in _rope(family, config).items()}
    if (
        name in ("olmo2", "exaone4", "exaone-moe", "cohere2", "gpt-oss", "gemma3")
        and "layer_types" in config
    ):
        slides = [kind == "sliding_attention" for kind in config["layer_types"]]
        if any(slides):
            metadata[f"{name}.attention.sliding_window_pattern"] = slides
    if family == "falcon":
        metadata["falcon.attention.head_count_kv"] = 1
        metadata["falcon.context_length"] = 2048
    if name == "deepseek2":
        metadata |= {f"{name}.{key}": value for key, value in _latent(config).items()}
    if name == "nemotron_h":
        del metadata[f"{name}.expert_used_count"]  # there are none
    own = making_hybrids.metadata(family, config) | making_mixtures.metadata(family, config)
    own |= making_gemmas.metadata(family, config) | making_others.metadata(family, config)
    metadata |= {f"{name}.{key}": value for key, value in own.items()}
    tensors = {key: value.float().numpy() for key, value in _stored(folder).items()}
    if family == "lfm2":
        width = len(tensors["model.layers.0.feed_forward.w1.weight"])
        metadata[f"{name}.feed_forward_length"] = width
    metadata |= making_others.whole(family, tensors)
    if family != "minicpm3":
        tensors = _by_part(config, tensors)
    tensors = making_hybrids.prepared(family, config, tensors)
    tensors = making_mixtures.prepared(family, tensors)
    tensors = making_gemmas.prepared(family, config, tensors)
    tensors = making_others.prepared(family, config, tensors)
    return family, metadata, _renamed(name, config, tensors)


def _latent(config: Mapping[str, Any]) -> dict[str, Any]:
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    is_sigmoid = config["model_type"] in ("deepseek_v3", "glm4_moe_lite")
    found = {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + turned,
        "attention.value_length_mla": config["v_head_dim"],
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": turned,
    }
    if config["q_lora_rank"]:
        found["attention.q_lora_rank"] = config["q_lora_rank"]
    if "n_routed_experts" not in config:
        # What llama.cpp wants to be told of a model without experts as well.
        return {
            **found,
            "leading_dense_block_count": config["num_hidden_layers"],
            "expert_feed_forward_length": config["intermediate_size"],
            "expert_shared_count": 0,
        }
    found |= {
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": is_sigmoid,
        "expert_gating_func": 2 if is_sigmoid else 1,
        "leading_dense_block_count": config.get("first_k_dense_replace", 1),
    }
    if is_sigmoid or config.get("topk_method") == "group_limited_greedy":
        found["expert_group_count"] = config["n_group"]
        found["expert_group_used_count"] = config["topk_group"]
    return found


def _by_part(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Split the matrix that makes keys and values by head, the keys' part transposed."""
    made: dict[str, np.ndarray] = {}
    for key, tensor in tensors.items():
        if not key.endswith("kv_b_proj.weight"):
            made[key] = tensor
            continue
        split = tensor.reshape(config["num_attention_heads"], -1, tensor.shape[1])
        keys, values = np.split(split, [config["qk_nope_head_dim"]], axis=1)
        made[key.replace("kv_b", "k_b")] = keys.swapaxes(1, 2)
        made[key.replace("kv_b", "v_b")] = values
    return made


def _stored(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def _rope(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters") or {}
    found: dict[str, Any] = {}
    if "full_attention" in rope:
        found["rope.freq_base"] = float(rope["full_attention"]["rope_theta"])
        found["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
        return found
    if not rope:
        return found
    found["rope.freq_base"] = float(rope["rope_theta"])
    heads = config.get("num_attention_heads") or config["n_heads"]
    if "hidden_size" not in config:
        return found
    size = config.get("head_dim") or config["hidden_size"] // heads
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    found["rope.dimension_count"] = int(size * part)
    if rope["rope_type"] == "yarn":
        found["rope.scaling.type"] = "yarn"
        found["rope.scaling.factor"] = float(rope["factor"])
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        if family.startswith("deepseek"):
            found["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
        elif "mscale_all_dim" in rope:
            found["rope.scaling.yarn_log_multiplier"] = float(rope["mscale_all_dim"])
            found["attention.temperature_scale"] = float(rope["llama_4_scaling_beta"])
    elif rope["rope_type"] == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    elif rope["rope_type"] == "longrope":
        original = config["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = original
    return found


def _renamed(
    name: str, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    architecture = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    layers = (
        config.get("num_hidden_layers", config.get("n_layer", config.get("n_layers")))
        or making_hybrids.LAYERS
    )
    names = gguf.get_tensor_name_map(architecture, layers)
    made: dict[str, np.ndarray] = {}
    for key, tensor in _one_by_one(config, _experts_stacked(tensors)).items():
        if key.startswith(_NAMED_ALREADY):
            made[key] = np.ascontiguousarray(tensor)
            continue
        known = key.removeprefix("transformer.") if name == "bloom" else key
        theirs = names.get_name(known, try_suffixes=(".weight", ".bias", "_bias"))
        if theirs is None and key.endswith(".sinks"):
            theirs = names.get_name(f"{key}.weight", try_suffixes=(".weight",))
        assert theirs is not None, key
        theirs = theirs.replace("_bias", ".bias") if key.endswith("_bias") else theirs
        is_bare = (name, theirs.rpartition(".")[2]) in making_hybrids.BARE
        theirs = theirs if is_bare or theirs.endswith((".weight", ".bias")) else f"{theirs}.weight"
        made[theirs] = np.ascontiguousarray(_moved(name, config, theirs, tensor))
    rope = config.get("rope_parameters") or {}
    for kind in ("long", "short"):
        if f"{kind}_factor" in rope:
            factors = np.array(rope[f"{kind}_factor"], np.float32)
            made[f"rope_factors_{kind}.weight"] = factors
    if rope.get("rope_type") == "llama3":
        made["rope_freqs.weight"] = _divisors(rope, config)
    return made


def _divisors(rope: Mapping[str, Any], config: Mapping[str, Any]) -> np.ndarray:
    """Return the divisors of frequencies under Llama 3's rule (model card of Llama 3.1)."""
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, size, 2) / size)
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _experts_stacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts that have a tensor each, in one of all."""
    made: dict[str, np.ndarray] = {}
    groups: dict[str, list[np.ndarray]] = {}
    for key, tensor in tensors.items():
        head, mark, rest = key.partition(".experts.")
        number, _, kind = rest.partition(".")
        if mark and number.isdigit():
            groups.setdefault(f"{head}.experts.{kind}", []).append(tensor)
        else:
            made[key] = tensor
    return made | {key: np.stack(each) for key, each in groups.items()}


def _one_by_one(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Gates of gpt-oss apart from what they let through, and matrices as ``[out, in]``."""
    if config["model_type"] != "gpt_oss":
        return dict(tensors)
    made: dict[str, np.ndarray] = {}
    for key, tensor in tensors.items():
        if ".experts." not in key:
            made[key] = tensor
            continue
        turned = tensor.swapaxes(1, 2) if tensor.ndim == 3 else tensor
        if "gate_up_proj" in key:
            for first, part in enumerate(("gate_proj", "up_proj")):
                made[key.replace("gate_up_proj", part)] = turned[:, first::2]
        else:
            made[key] = turned
    return made


def _moved(name: str, config: Mapping[str, Any], theirs: str, tensor: np.ndarray) -> np.ndarray:
    heads = config.get("num_attention_heads", config.get("n_head"))
    if name in _TURNED_IN_PAIRS and theirs.split(".")[-2] in ("attn_q", "attn_k"):
        count = heads if ".attn_q." in theirs else config["num_key_value_heads"]
        split = tensor.reshape(count, 2, len(tensor) // count // 2, *tensor.shape[1:])
        return split.swapaxes(1, 2).reshape(tensor.shape)
    if name in _PLUS_ONE and theirs.endswith("norm.weight"):
        return tensor + np.float32(1)
    if name == "gpt2" and tensor.ndim == 2 and not theirs.startswith(("token", "position", "out")):
        return tensor.T
    if name in ("bloom", "gptneox") and ".attn_qkv." in theirs:  # by head there
        split = tensor.reshape(heads, 3, len(tensor) // heads // 3, *tensor.shape[1:])
        return split.swapaxes(0, 1).reshape(tensor.shape)
    return tensor
