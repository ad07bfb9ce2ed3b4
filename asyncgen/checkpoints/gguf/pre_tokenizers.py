r"""Make the pre-tokenizers of byte-level BPE that ``tokenizer.ggml.pre`` names.

Each is that of the ``tokenizer.json`` of the models of that name: a list of steps, each a regular
expression whose matches are isolated, or a step of the `tokenizers` library.
"""

from __future__ import annotations

from typing import Final

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Punctuation, Sequence, Split

_ENDINGS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K: Final = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
"""Pattern of GPT-4 and Llama 3."""
_QWEN2: Final = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_QWEN35: Final = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_O200K: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_ENDINGS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_ENDINGS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pattern of GPT-4o."""
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MARKED: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3: Final = (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _MARKED)

_RUN: Final = r"\p{N}+"
_THREES: Final = r"\A\p{N}{1,2}(?=(?>(?:\p{N}{3})*)\z)|\p{N}{3}"
"""Groups of three digits, counted from the end, of an isolated run of digits; the look-ahead is
evaluated once for the whole run."""
_ASIAN: Final = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"
    "\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f"
    "\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_EAST: Final = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
"""Korean, East Asian punctuation, Bopomofo, and Chinese and Japanese."""
_YOUTU: Final = _O200K.replace(r"\p{N}{1,3}", r"\p{N}")
_NOT_HAN: Final = r"&&[^\p{Han}]"
_KIMI: Final = (
    r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}{_NOT_HAN}]*[{_LOWER}{_NOT_HAN}]+{_ENDINGS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}{_NOT_HAN}]+[{_LOWER}{_NOT_HAN}]*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}|{_REST}"
)
_EXAONE_MOE: Final = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)

_STEPS: Final[dict[str, tuple[str, ...]]] = {
    "llama-bpe": (_CL100K,),
    "qwen2": (_QWEN2,),
    "qwen35": (_QWEN35,),
    "gpt-4o": (_O200K,),
    "tekken": (_TEKKEN,),
    "deepseek-v3": _DEEPSEEK_V3,
    "afmoe": (_RUN, _THREES, _ASIAN, _MARKED),
    "exaone-moe": (_EXAONE_MOE,),
    "kimi-k2": (_KIMI,),
    "youtu": (_EAST, _YOUTU),
}
"""Pre-tokenizers of regular expressions, applied in order."""

_ALIASES: Final = {
    "llama-bpe": "llama3 llama-v3 falcon3 pixtral lfm2 dbrx smaug-bpe chatglm-bpe glm4",
    "qwen2": "deepseek-r1-qwen stablelm2 megrez hunyuan solar-open",
    "gpt-4o": "llama4 minimax-m2 kanana2",
    "gpt2": "default gpt-2 phi-2 olmo jais mpt exaone4 trillion granite-docling",
    "digits": "starcoder smollm refact command-r codeshell exaone minerva-7b",
    "deepseek-v3": "hunyuan-dense",
    "falcon": "falcon",
}
"""Further names of each pre-tokenizer."""

_SAME: Final = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}

WHOLE_FIRST: Final = frozenset({"llama-bpe", "tekken", "youtu", "kimi-k2"})
"""Pre-tokenizers after which a piece that is a token needs no merges."""

BEGINS: Final = frozenset({"llama-bpe", "tekken"})
"""Pre-tokenizers of models whose texts begin with a special token unless the file denies it."""


def pre_tokenizer_name(pre: str) -> str | None:
    """Return the pre-tokenizer of a name or alias; ``None``: unknown.

    Args:
        pre: Value of ``tokenizer.ggml.pre``.
    """
    way = _SAME.get(pre, pre)
    return way if way in _STEPS or way in ("gpt2", "digits", "falcon") else None


def pre_tokenizer_names() -> list[str]:
    """Return all known names."""
    return sorted({*_STEPS, *_SAME} - {"gpt2", "digits"})


def make_pre_tokenizer(way: str) -> PreTokenizer:
    """Make a pre-tokenizer.

    Args:
        way: Name from `pre_tokenizer_name`.
    """
    by_bytes = ByteLevel(add_prefix_space=False, use_regex=way not in _STEPS)
    if way == "gpt2":
        return by_bytes
    if way == "digits":
        return Sequence([Digits(individual_digits=True), by_bytes])
    if way == "falcon":
        threes = Split(Regex("[0-9][0-9][0-9]"), "isolated")
        return Sequence(
            [Punctuation("contiguous"), by_bytes, Digits(individual_digits=False), threes]
        )
    return Sequence([*(Split(Regex(each), "isolated") for each in _STEPS[way]), by_bytes])
