"""Make strange ``tokenizer.json`` files of real ones, and use each in a process of its own.

``python -m tests.text.strange_tokenizers SEED COUNT`` writes JSON: how often each end came, and the
cases that broke the law, with the files. The law: no process is ended by a signal, none takes 2 GB,
no call takes a second, and whatever is refused is refused by an error of ours.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from asyncgen.errors import AsyncgenError
from asyncgen.text.tokenizer import Tokenizer
from asyncgen.text.tokenizer_parts import CHAINS
from streamers import Detokenizer
from tests.doubles.tokenizers import KINDS, tokenizer_json

MOST_BYTES = 2 * 1024**3
MOST_SECONDS = 1.0
PATIENCE = 60

TEXTS = (
    "Hello world, it's 1234 caf\u00e9 \U0001f600\n",
    "",
    "a" * 1990,
    "ab " * 660 + "!1",
    "\u0e01\u6f22e\u0301" * 400,
    "\ufdfa\u00e9 " * 300,
)

_FIXED = {"String": " "}, {"Regex": r"\s+"}, {"Regex": r"\p{N}{1,3}"}, {"String": "\u2581"}
_BYTES = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_ENDS = {"sep": ["</s>", 2], "cls": ["<s>", 1]}
_META = {"replacement": "\u2581", "prepend_scheme": "always", "split": True}
_PIECE = {"Sequence": {"id": "A", "type_id": 0}}
_TEMPLATE = {
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, _PIECE],
    "pair": [_PIECE, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}
_CHARSMAP = base64.b64encode((1024).to_bytes(4, "little") + bytes(1024) + b"a\0").decode()
_SPLIT = {"behavior": "Isolated", "invert": False}

STEPS: dict[str, list[dict[str, Any]]] = {
    "normalizer": [
        *({"type": kind} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase")),
        {"type": "StripAccents"},
        {"type": "ByteLevel"},
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Precompiled", "precompiled_charsmap": _CHARSMAP},
        *({"type": "Replace", "pattern": each, "content": "x"} for each in _FIXED),
    ],
    "pre_tokenizer": [
        *({"type": kind} for kind in ("BertPreTokenizer", "UnicodeScripts", "Whitespace")),
        {"type": "WhitespaceSplit"},
        {"type": "ByteLevel", **_BYTES},
        {"type": "CharDelimiterSplit", "delimiter": " "},
        {"type": "Digits", "individual_digits": True},
        {"type": "FixedLength", "length": 3},
        {"type": "Metaspace", **_META},
        {"type": "Punctuation", "behavior": "Contiguous"},
        *({"type": "Split", "pattern": each, **_SPLIT} for each in _FIXED),
    ],
    "post_processor": [
        {"type": "ByteLevel", **_BYTES},
        {"type": "BertProcessing", **_ENDS},
        {"type": "RobertaProcessing", **_ENDS, "trim_offsets": True, "add_prefix_space": False},
        {"type": "TemplateProcessing", **_TEMPLATE},
    ],
    "decoder": [
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "ByteLevel", **_BYTES},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Metaspace", **_META},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *({"type": "Replace", "pattern": each, "content": " "} for each in _FIXED),
    ],
}
"""A step of each type; a test holds it to the table."""

_SEQUENCES = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}

MODELS: list[dict[str, Any]] = [
    {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1, "Hello": 2}, "unk_token": "<unk>"},
    {
        "type": "WordPiece",
        "unk_token": "<unk>",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {"<unk>": 0, "a": 1, "##a": 2, "##aa": 3, "H": 4},
    },
    {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": "##",
        "end_of_word_suffix": "</w>",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {"<unk>": 0, "a": 1, "##a": 2, "aa": 3, "\u00e9": 4, "##\u00e9": 5, "a\u00e9": 6},
        "merges": [["a", "##a"], ["a", "##\u00e9"]],
    },
    {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [["<unk>", 0.0], ["a", -1.0], ["aa", -1.5], ["\u2581", -2.0], ["Hello", -3.0]],
        "byte_fallback": False,
    },
]

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**20, 2**22 - 1, 2**22, 2**31, 2**32 - 1, 2**32),
    *(2**63, 2**64, 10**30, 0.5, -0.0, 1e300, -1e300),
    *("", "a", "\u00e9", " ", "\u2581", "##", "\0", "\ud800", "\U0001f600", "</w>", "x" * 64),
    *("\u00e9" * 32, "x" * 65, "a" * 256, "a" * 5000, "a" * 300_000, "(a", "[^", "AAAA", "A"),
    *("Removed", "MergedWithPrevious", "never", "first", "Left", "$A"),
    *([], {}, [[]], ["a", "b"], ["a", 1], {"String": ""}, {"String": "a"}, {"Regex": ""}),
    *({"Regex": "a*"}, {"Regex": "(?=a)"}, {"Regex": "$"}, {"Regex": "(a"}, {"Regex": "\\b"}),
)


def strange(draw: random.Random) -> str:
    """Return a ``tokenizer.json`` of random parts, a few of which are changed."""
    state = json.loads(tokenizer_json(draw.choice(KINDS)))
    if draw.random() < 0.6:
        state["model"] = copy.deepcopy(draw.choice(MODELS))
    for chain in CHAINS:
        if draw.random() < 0.4:
            parts = copy.deepcopy(draw.choices(STEPS[chain], k=draw.choice((0, 1, 1, 1, 2, 2, 3))))
            one = draw.random() < 0.5 and len(parts) == 1
            state[chain] = parts[0] if one else {"type": "Sequence", _SEQUENCES[chain]: parts}
    for _ in range(draw.choice((0, 1, 1, 1, 2))):
        draw.choice((_change, _attack))(draw, state)
    return json.dumps(state)


def _attack(draw: random.Random, state: dict[str, Any]) -> None:
    """Change what the library trusts: affixes, merges, pieces, rules, templates, repeated steps."""
    model: Any = state.get("model")
    way = draw.randrange(7)
    if way == 0 and isinstance(model, dict):
        key = draw.choice(("continuing_subword_prefix", "end_of_word_suffix", "unk_token"))
        model[key] = draw.choice(("x", "\u00e9", "##", "\U0001f600", "#" * 64, "#" * 100_000))
    elif way == 1 and isinstance(model, dict) and isinstance(model.get("merges"), list):
        pair = draw.choice(
            (["a", "\u00e9"], "a \u00e9", ["##a", "a"], ["a"], "a", ["a", ""], [1, 2])
        )
        model["merges"].insert(0, pair)
        model.setdefault("vocab", {})
    elif way == 2 and isinstance(model, dict) and isinstance(model.get("vocab"), list):
        most = draw.choice((10, 256, 1000, 3000))
        model["vocab"] += [["a" * length, -0.1 * length] for length in range(3, most)]
    elif way == 3:
        broken = bytearray(base64.b64decode(_CHARSMAP))
        for _ in range(draw.choice((1, 4, 64))):
            broken[draw.choice((draw.randrange(4), draw.randrange(len(broken))))] = draw.randrange(
                256
            )
        rules = base64.b64encode(broken).decode()
        state["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": rules}
    elif way == 4:
        count, times = draw.choice((1, 30, 10_000)), draw.choice((1, 3, 1000))
        special = {"id": "<s>", "ids": [1] * count, "tokens": ["<s>"] * count}
        state["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * times + [_PIECE],
            "pair": _TEMPLATE["pair"],
            "special_tokens": {"<s>": special},
        }
    elif way == 5:
        chain = draw.choice(CHAINS)
        step = {**draw.choice(STEPS[chain]), draw.choice((*_SEQUENCES.values(), "x")): []}
        state[chain] = {"type": "Sequence", _SEQUENCES[chain]: [step] * draw.choice((1, 40, 300))}
    else:
        chain = draw.choice(CHAINS)
        parts = [draw.choice(STEPS[chain])] * draw.choice((4, 30, 300))
        state[chain] = {"type": "Sequence", _SEQUENCES[chain]: parts}


def _change(draw: random.Random, state: dict[str, Any]) -> None:
    holder: Any = state
    names = (*CHAINS, *["model"] * 4, "added_tokens")
    name: Any = draw.choice([name for name in names if name in state])
    while isinstance(holder[name], dict | list) and holder[name] and draw.random() < 0.9:
        holder = holder[name]
        name = draw.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
    way = draw.random()
    if way < 0.6:
        holder[name] = copy.deepcopy(draw.choice(VALUES))
    elif way < 0.7:
        del holder[name]
    elif way < 0.8 and isinstance(holder, dict):
        key = draw.choice(("decoders", "content", "pattern", "type", "a", "\u00e9", "x" * 5000))
        holder[key] = copy.deepcopy(draw.choice((*VALUES, holder[name])))
    elif isinstance(holder, list):
        holder.extend(copy.deepcopy([holder[name]] * draw.choice((1, 60, 300))))
    elif isinstance(holder[name], str):
        holder[name] *= draw.choice((2, 16, 64, 300))


def use(folder: Path) -> str:
    """Load and use a tokenizer; return how that ended."""
    end = "used"
    try:
        tokenizer = _timed(Tokenizer.from_folder, folder)
    except AsyncgenError as error:
        return f"refused at load: {str(error).partition('tokenizer.json')[2][:160]}"
    for text in TEXTS:
        try:
            ids = _timed(tokenizer.encode_ids, text)
            if len(ids) > 300 * (len(text) + 1):
                return f"broken: {len(ids)} tokens of {len(text)} letters"
            _timed(tokenizer.decode, ids)
            _timed(_stream, tokenizer, ids[:200])
        except AsyncgenError as error:
            end = f"refused a text: {str(error)[-160:]}"
    try:
        _timed(tokenizer.decode, [*range(min(len(tokenizer), 2000))])
        _ = tokenizer.longest_token
    except AsyncgenError as error:
        end = f"refused a text: {str(error)[-160:]}"
    return end


class _TooLongError(Exception):
    pass


def _timed(call: Any, *given: Any) -> Any:
    start = time.process_time()
    try:
        return call(*given)
    finally:
        spent = time.process_time() - start
        if spent > MOST_SECONDS:
            raise _TooLongError(f"{getattr(call, '__name__', call)} took {spent:.1f} s")


def _stream(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    for token in ids:
        detokenizer.put(token)
    detokenizer.flush()


def _tried(content: str, place: Path) -> str:
    """Use a file in a child; return how the child ended."""
    (place / "tokenizer.json").write_text(content, encoding="utf-8")
    (place / "end").write_text("")
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (2 * MOST_BYTES, 2 * MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            end = use(place)
        except BaseException as error:
            end = f"broken: {type(error).__name__}: {str(error)[:200]}"
        (place / "end").write_text(end)
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    if os.WIFSIGNALED(status):
        return f"broken: ended by signal {os.WTERMSIG(status)}"
    if usage.ru_maxrss * 1024 > MOST_BYTES:
        return f"broken: {usage.ru_maxrss // 1024} MiB"
    return (place / "end").read_text()


def main(seed: int, count: int) -> None:
    """Try so many files, and write what came of them."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    ends: Counter[str] = Counter()
    reasons: list[str] = []
    broken: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as name:
        for number in range(count):
            content = strange(random.Random(f"{seed} {number}"))
            end = _tried(content, Path(name))
            ends[end.partition(":")[0]] += 1
            reasons += [end] if "refused" in end else []
            if end.startswith("broken"):
                broken.append((end, content[:2000]))
    if "-v" in sys.argv:
        print(*reasons, sep="\n", file=sys.stderr)  # noqa: T201
    json.dump({"ends": ends, "broken": broken}, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
