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

_JAIS2: Final = _CL100K.removesuffix(r"|\s+(?!\S)|\s+") + (
    "".join(rf"|\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"
)
"""Long runs of spaces are cut into powers of two."""
_SEED: Final = _QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
_BAILING: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SPARK: Final = _MARKED.replace(r"+[\r\n]*|\s*[\r\n]+", r"+|[\r\n]")
_BLOOM: Final = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_WIDE: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
"""Characters of Asian scripts, as DeepSeek's first tokenizers have them."""
_LETTERS: Final = "".join(
    "-".join(rf"\x{{{end}}}" for end in each.split("-"))
    for each in (
        "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376-377 37b-37d 37f 386"
        " 388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd"
        " 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d"
        " 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3"
        " 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128"
        " 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183-2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee"
        " 2cf2-2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17"
        " ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2"
        " 118a0-118df 1e900-1e943"
    ).split()
)
"""Letters with an upper or a lower case, as DeepSeek's first tokenizer has them."""
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?[{_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _WIDE,
    _RUN,
)
_DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _WIDE, r"\p{N}")
_OVER: Final = r"\d{1,2}(?=(?>(?:\d{3})*)(?!\d))"
"""The first digits of a run, so that threes are left."""
_OTHERS: Final = rf"(?>\D+)(?:{_OVER})?"
_SUPER: Final = rf"\A(?:{_OVER}(?:{_OTHERS})*|(?:{_OTHERS})+)|\d{{3}}(?:{_OTHERS})*"
"""Cuts before each three digits that are counted from the end; linear, like `_THREES`."""
_WHOLE_RUN: Final = r"(?<!\d)(?>\d+)\b"
"""Digits that no letter follows."""
_WHOLE_THREES: Final = r"\A\d{1,2}(?=(?>(?:\d{3})*)\z)|\A\d{3}(?=(?>(?:\d{3})*)\z)|\G(?!\A)\d{3}"
"""Threes, counted from the end, of a piece that is digits from end to end."""

_STEPS: Final[dict[str, tuple[str, ...]]] = {
    "llama-bpe": (_CL100K,),
    "qwen2": (_QWEN2,),
    "qwen35": (_QWEN35,),
    "gpt-4o": (_O200K,),
    "tekken": (_TEKKEN,),
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-v3": _DEEPSEEK_V3,
    "afmoe": (_RUN, _THREES, _ASIAN, _MARKED),
    "bailingmoe": (_BAILING,),
    "bloom": (_BLOOM,),
    "exaone-moe": (_EXAONE_MOE,),
    "jais-2": (_JAIS2,),
    "kimi-k2": (_KIMI,),
    "laguna": (r"[^\n]+|[\n]+", _QWEN2),
    "minicpm5": (r"\p{N}{1,3}", _QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")),
    "seed-coder": (_SEED,),
    "spark2_5": (*_DEEPSEEK_V3[:2], _SPARK, r"\p{N}"),
    "superbpe": (_RUN, _SUPER),
    "tiny_aya": (_WHOLE_RUN, _WHOLE_THREES, _O200K),
    "ufakzeka": (_QWEN2.removeprefix(f"{_ENDINGS}|"),),
    "viking": (_BLOOM, r"\p{N}"),
    "youtu": (_EAST, _YOUTU),
}
"""Pre-tokenizers of regular expressions, applied in order."""

PATTERNS: Final = frozenset(pattern for steps in _STEPS.values() for pattern in steps)
"""Every regular expression of theirs."""

_ALIASES: Final = {
    "llama-bpe": (
        "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
        " dbrx smaug-bpe chatglm-bpe glm4"
    ),
    "qwen2": "deepseek-r1-qwen stablelm2 megrez hunyuan solar-open kormo f2llmv2 grok-2",
    "gpt-4o": "llama4 minimax-m2 kanana2 talkie granite-embed-multi-97m",
    "gpt2": (
        "default gpt-2 phi-2 olmo jais mpt exaone4 trillion granite-docling gigachat a.x-4.0 mellum"
    ),
    "digits": "starcoder smollm refact command-r codeshell exaone minerva-7b mellum2",
    "deepseek-v3": "hunyuan-dense joyai-llm hy_v4",
    "bailingmoe": "bailingmoe2 llada-moe",
    "bloom": "poro-chat gpt3-finnish",
    "tiny_aya": "cohere2moe",
    "falcon": "falcon",
}
"""Further names of each pre-tokenizer."""

_SAME: Final = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}

BEGINS: Final = frozenset(
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken".split()
)
"""Names of models whose texts begin with a special token unless the file denies it."""

WHOLE_FIRST: Final = BEGINS | {"youtu", "kimi-k2", "minicpm5", "granite-embed-multi-97m"}
"""Names of models in which a piece that is a token needs no merges."""


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


def make_pre_tokenizer(way: str, *, add_prefix_space: bool = False) -> PreTokenizer:
    """Make a pre-tokenizer.

    Args:
        way: Name from `pre_tokenizer_name`.
        add_prefix_space: Split a text as if a space stood before it.
    """
    by_bytes = ByteLevel(add_prefix_space=add_prefix_space, use_regex=way not in _STEPS)
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
