"""Every `pre` name that llama.cpp reads: texts are cut as the models of that name cut them."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split

import asyncgen
from asyncgen.checkpoints.gguf import pre_tokenizers as pre_tokenizer_patterns
from asyncgen.checkpoints.gguf.pre_tokenizers import make_pre_tokenizer, pre_tokenizer_name
from asyncgen.errors import UnsupportedModelError
from tests.cases import for_each
from tests.checkpoints.gguf.test_tokenizer import byte_level, texts, write_bytes

if TYPE_CHECKING:
    from pathlib import Path

EDGES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{EDGES}"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+ENDINGS|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*ENDINGS"
)
O200K = CASED.replace("ENDINGS", f"{ENDINGS}?") + (
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{EDGES}"
)
QWEN = rf"{ENDINGS}|{WORD}|\p{{N}}|{TAIL}"
LLAMA = rf"{ENDINGS}|{WORD}|\p{{N}}{{1,3}}|{TAIL}"
MARKED = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
ASIAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
CASCADE = "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
RULES: Final[dict[str, tuple[str, ...]]] = {
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe"
    " glm4 chatglm-bpe": (LLAMA,),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2": (QWEN,),
    "qwen35": (
        (
            rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{EDGES}"
        ),
    ),
    "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m": (O200K,),
    "tekken": (CASED.replace("ENDINGS", "") + rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{EDGES}",),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{pre_tokenizer_patterns._LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        HANGUL,
        r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HANGUL, r"\p{N}"),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": (
        r"\p{N}{1,3}",
        ASIAN,
        rf"{MARKED}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{EDGES}",
    ),
    "spark2_5": (
        r"\p{N}{1,3}",
        ASIAN,
        MARKED + r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    ),
    "bloom poro-chat gpt3-finnish": (BLOOM,),
    "viking": (BLOOM, r"\p{N}"),
    "jais-2": (
        (
            rf"{ENDINGS}|{WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+{CASCADE}"
            r"|\s{1,2}(?!\S)|\s{1}"
        ),
    ),
    "tiny_aya cohere2moe": (r"\d{1,3}(?=(?:\d{3})*\b)", O200K),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "bailingmoe bailingmoe2 llada-moe": (
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
    ),
    "seed-coder": (rf"{ENDINGS}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{EDGES}",),
    "ufakzeka": (rf"{WORD}|\p{{N}}|{TAIL}",),
    "laguna": (r"[^\n]+|[\n]+", QWEN),
    "minicpm5": (r"\p{N}{1,3}", rf"{ENDINGS}|{WORD}|\p{{N}}+|{TAIL}"),
    "exaone-moe": (
        (
            rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
    ),
    "afmoe": (
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        pre_tokenizer_patterns._ASIAN,
        rf"{MARKED}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{EDGES}",
    ),
    "kimi-k2": (
        r"[\p{Han}]+|"
        + CASED.replace("ENDINGS", f"{ENDINGS}?").replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
        + rf"|\p{{N}}{{1,3}}|{TAIL}",
    ),
    "youtu": (
        pre_tokenizer_patterns._EAST,
        O200K.replace("{1,3}", ""),
    ),
}
"""The expressions of the files of these models, applied in order, by names."""

STEPS: Final[dict[str, list[Any]]] = {
    "gpt-2 phi-2 gigachat a.x-4.0 mellum mpt olmo jais trillion granite-docling exaone4": [],
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": [
        Digits(individual_digits=True)
    ],
    "falcon": [Punctuation("contiguous")],
}
"""Steps before GPT-2's own, by names."""

ELSEWHERE = (
    "chameleon gemma4 granite-embed-multi-311m jina-de jina-es jina-v1-en jina-v2-code jina-v2-de"
    " jina-v2-es modern-bert roberta-bpe sarvam-moe whitespace"
).split()
"""Names of models whose architectures are not read, or not with byte-level tokens."""

RULES_BY_NAME = {name: rules for names, rules in RULES.items() for name in names.split()}
STEPS_BY_NAME = {name: steps for names, steps in STEPS.items() for name in names.split()}
CHARACTERS = "aZ1230\u0661½ .,'/_(\n\r\té\u0301你あ한ไ！…€😀sK"


def original(name: str) -> Any:
    if name in RULES_BY_NAME:
        cuts: list[Any] = [Split(Regex(rule), "isolated") for rule in RULES_BY_NAME[name]]
        return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
    after = [Digits(False), Split(Regex("[0-9][0-9][0-9]"), "isolated")] if name == "falcon" else []
    return Sequence([*STEPS_BY_NAME[name], ByteLevel(add_prefix_space=False), *after])


@for_each("name", [*RULES_BY_NAME, *STEPS_BY_NAME])
def test_texts_are_cut_as_the_models_of_each_name_cut_them(name: str) -> None:
    way = pre_tokenizer_name(name)
    assert way is not None, name
    ours, theirs, draw = make_pre_tokenizer(way), original(name), random.Random(7)
    odd = ["".join(draw.choices(CHARACTERS, k=draw.randrange(1, 30))) for _ in range(60)]
    for text in [*texts(12), *odd, " " * 700 + "a", "\n" * 9, "12345 1234567a 123456"]:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), (name, text)


def test_letters_of_deepseek_have_a_case() -> None:
    letters = Regex(f"[{pre_tokenizer_patterns._LETTERS}]")
    cut = Split(letters, "removed")
    cased = ["A", "z", "\u00b5", "\u01c5", "\u1f7d", "\u212a", "\ua76f", "\ufb17", "\U0001e943"]
    assert [text for text in cased if cut.pre_tokenize_str(text)] == []
    others = ["1", "\u00aa", "\u01bb", "\u0294", "\u0561", "\u10d0", "\u4e00", "\u1fbd", "\u2125"]
    assert [text for text in others if not cut.pre_tokenize_str(text)] == []


@for_each("name", ["superbpe", "tiny_aya", "afmoe"])
def test_digits_in_threes_take_linear_time(name: str) -> None:
    ours, start = make_pre_tokenizer(pre_tokenizer_name(name) or ""), time.process_time()
    for text in ("7" * 100_000, "7" * 100_000 + "a", "½7" * 50_000):
        ours.pre_tokenize_str(text)
    assert time.process_time() - start < 2  # the original expressions take half a minute


def test_names_of_unread_models_are_refused(tmp_path: Path) -> None:
    tokenizer = byte_level(original("gpt-2"))
    for name in ELSEWHERE:
        with pytest.raises(UnsupportedModelError, match=f"pre` is '{name}'"):
            asyncgen.load_tokenizer(write_bytes(tmp_path, tokenizer, name))


@for_each(
    ("pre", "begins"),
    [("falcon-h1", True), ("midm-2.0", True), ("tekken", True)]
    + [(name, False) for name in ("glm4", "dbrx", "smaug-bpe", "youtu", "seed-coder", "bloom")],
)
def test_texts_begin_with_a_token_for_the_names_that_llama_cpp_lists(
    pre: str, begins: bool, tmp_path: Path
) -> None:
    file = write_bytes(tmp_path, TOKENIZER, pre)
    assert (asyncgen.load_tokenizer(file).encode_ids("a")[0] == 0) is begins, pre


TOKENIZER = byte_level(original("gpt-2"))
