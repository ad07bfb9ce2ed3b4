"""Special tokens that the classes of the reference supply where the files of a tokenizer name none.

``tokenizer_class`` in ``tokenizer_config.json`` or ``config.json``, or the model type, selects the
class, by the rules of the reference's ``AutoTokenizer`` (transformers 5.23). A role that a file
names, if only as null, is the file's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN: Final = ""
"""Class without special tokens of its own."""

_END: Final = "<|endoftext|>"
_GPT2: Final = {"bos_token": _END, "eos_token": _END, "unk_token": _END}
_QWEN: Final = {"eos_token": _END, "unk_token": _END, "pad_token": _END}
_LLAMA: Final = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_T5: Final = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_GEMMA: Final = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_XGLM: Final = {**_LLAMA, "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>"}
_ROBERTA: Final = {**_XGLM, "mask_token": "<mask>"}
_BERT: Final = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_DEBERTA: Final = {"bos_token": "[CLS]", "eos_token": "[SEP]", **_BERT}
_ALBERT: Final = {**_DEBERTA, "unk_token": "<unk>", "pad_token": "<pad>"}
_XLNET: Final = {**_ROBERTA, "sep_token": "<sep>", "cls_token": "<cls>"}

_TOKENS: Final[dict[str, dict[str, str]]] = {
    "GPT2Tokenizer": _GPT2,
    "WhisperTokenizer": _GPT2,
    "GPTNeoXTokenizer": {**_GPT2, "pad_token": "<|padding|>"},
    "Qwen2Tokenizer": _QWEN,
    "Qwen3_5Tokenizer": _QWEN,
    "CLIPTokenizer": {**_QWEN, "bos_token": "<|startoftext|>"},
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": {
        **_LLAMA,
        "prefix_token": "\u2581<PRE>",
        "middle_token": "\u2581<MID>",
        "suffix_token": "\u2581<SUF>",
        "eot_token": "\u2581<EOT>",
        "fill_token": "<FILL_ME>",
    },
    "NougatTokenizer": {**_LLAMA, "pad_token": "<pad>"},
    "GemmaTokenizer": _GEMMA,
    "Siglip2Tokenizer": _GEMMA,
    "CohereTokenizer": {
        "bos_token": "<BOS_TOKEN>",
        "eos_token": "<|END_OF_TURN_TOKEN|>",
        "unk_token": "<UNK>",
        "sep_token": "<SEP>",
        "pad_token": "<PAD>",
        "cls_token": "<CLS>",
        "mask_token": "<MASK_TOKEN>",
    },
    "T5Tokenizer": _T5,
    "UdopTokenizer": {**_T5, "sep_token": "</s>"},
    "PegasusTokenizer": {**_T5, "mask_token": "<mask_2>"},
    "ReformerTokenizer": {"eos_token": "</s>", "unk_token": "<unk>"},
    "OpenAIGPTTokenizer": {"unk_token": "<unk>"},
    "XGLMTokenizer": _XGLM,
    "SeamlessM4TTokenizer": _XGLM,
    "BioGptTokenizer": {**_LLAMA, "sep_token": "</s>", "pad_token": "<pad>"},
    "MPNetTokenizer": {**_ROBERTA, "unk_token": "[UNK]"},
    "HerbertTokenizer": {role: _ROBERTA[role] for role in _BERT},
    "MBart50Tokenizer": {role: _ROBERTA[role] for role in ("eos_token", *_BERT)},
    "BigBirdTokenizer": {**_ALBERT, "bos_token": "<s>", "eos_token": "</s>"},
    "FunnelTokenizer": _XLNET,
    "XLNetTokenizer": _XLNET,
    **dict.fromkeys(("DebertaTokenizer", "DebertaV2Tokenizer"), _DEBERTA),
    **dict.fromkeys(("AlbertTokenizer", "FNetTokenizer", "RemBertTokenizer"), _ALBERT),
    **dict.fromkeys(
        (
            "BertTokenizer",
            "LayoutLMv2Tokenizer",
            "LxmertTokenizer",
            "MobileBertTokenizer",
            "RoFormerTokenizer",
        ),
        _BERT,
    ),
    **dict.fromkeys(
        (
            "BartTokenizer",
            "BarthezTokenizer",
            "BlenderbotTokenizer",
            "CamembertTokenizer",
            "LEDTokenizer",
            "LayoutLMv3Tokenizer",
            "LayoutXLMTokenizer",
            "MBartTokenizer",
            "MarkupLMTokenizer",
            "MvpTokenizer",
            "NllbTokenizer",
            "RobertaTokenizer",
            "XLMRobertaTokenizer",
        ),
        _ROBERTA,
    ),
}
"""Tokens by role of each class that reads ``tokenizer.json``, and of BioGPT's."""

_OF_TYPES: Final = {
    "GPT2Tokenizer": "codegen dbrx gpt2 gpt_neo gptj jais2 opt phi starcoder2",
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe",
    "Qwen2Tokenizer": "qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next",
    "Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text",
    "GemmaTokenizer": "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma",
    "CohereTokenizer": "aya_vision cohere cohere2",
    "T5Tokenizer": "mt5 t5",
    "XGLMTokenizer": "xglm",
    "BioGptTokenizer": "biogpt",
    _PLAIN: (
        "aria ernie4_5 ernie4_5_moe flex_olmo glm glm4 glm4_moe glm4_moe_lite gpt_bigcode granite"
        " granitemoe granitemoehybrid granitemoeshared hyperclovax internlm3 iquestcoder jamba"
        " kimi_linear llava llava_next mimo_v2_flash minicpm3 minimax_m2 ministral ministral3"
        " mistral mistral3 mixtral nemotron olmo2 olmo3 olmo_hybrid persimmon phi3 phimoe stablelm"
        " umt5"
    ),
}
_CLASS_OF_TYPE: Final = {
    model_type: name for name, types in _OF_TYPES.items() for model_type in types.split()
}
_TYPE_DECIDES: Final = frozenset({"qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"})
"""Model types whose files often name a wrong class."""


def class_name(
    tokenizer_config: Mapping[str, Any], model_config: Mapping[str, Any], *, is_byte_level: bool
) -> str:
    """Return the class that the reference would take; empty: one without tokens of its own.

    Args:
        tokenizer_config: Content of ``tokenizer_config.json``.
        model_config: Content of ``config.json``.
        is_byte_level: ``tokenizer.json`` splits or joins texts by bytes.
    """
    named = tokenizer_config.get("tokenizer_class") or model_config.get("tokenizer_class")
    model_type = model_config.get("model_type")
    of_type = _CLASS_OF_TYPE.get(model_type) if isinstance(model_type, str) else None
    if not isinstance(named, str):
        return of_type or _PLAIN
    named = named.removesuffix("Fast")
    if of_type is not None and of_type != named:
        if of_type == _PLAIN:
            return _PLAIN
        if model_type in _TYPE_DECIDES:
            return of_type
    if named == "LlamaTokenizer" and is_byte_level:
        return _PLAIN
    return named if named in _TOKENS else _PLAIN


def class_tokens(name: str) -> Mapping[str, str]:
    """Return the special tokens of a class by role.

    Args:
        name: Name from `class_name`.
    """
    return _TOKENS.get(name, {})


def with_class_extras(name: str, listed: list[str] | None, config: Mapping[str, Any]) -> list[str]:
    """Return the special tokens without a role: those of the files, or those of the class.

    Args:
        name: Name from `class_name`.
        listed: Tokens that the files list; ``None``: they list none.
        config: Content of ``tokenizer_config.json``.
    """
    if listed is not None:
        return listed
    if name == "T5Tokenizer":
        return [f"<extra_id_{index}>" for index in range(int(config.get("extra_ids", 100)))]
    if name == "XGLMTokenizer":
        return [f"<madeupword{index}>" for index in range(7)]
    return []
