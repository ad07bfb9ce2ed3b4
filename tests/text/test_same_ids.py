"""Checks of a tokenizer's file change no ids: each text has those that the library finds alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer as Backend

import asyncgen
from asyncgen.errors import AsyncgenError
from asyncgen.text.known_patterns import KNOWN_PATTERNS
from asyncgen.text.tokenizer import Tokenizer
from tests.doubles.tokenizers import KINDS, tokenizer_json
from tests.text.strange_tokenizers import MODELS, STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

BYTES = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_PIECES = (
    *("Hello", " world", "'s", "I'm", " 1234", "56", " ", "  ", "\n", "\r\n", "\t", "-", "..."),
    *("caf\u00e9", "e\u0301", "\ufdfa", "\u6f22\u5b57", "\u0e01\u0e33", "\U0001f600", "\u2581"),
    *("<s>", "</s>", "<unk>", "<|im_end|>", "[CLS]", "[SEP]", "<0x41>", "##a", "\0", "\u200d"),
    *("\u00a0", "ABC", "_x"),
)


def texts(count: int, seed: int) -> list[str]:
    """Random texts of pieces that steps treat in ways of their own."""
    pick = random.Random(seed)
    return ["".join(pick.choices(_PIECES, k=pick.randrange(24))) for _ in range(count)]


def check(file: str, folder: Path, count: int) -> None:
    """Compare ids and texts; the file is refused by no check."""
    (folder / "tokenizer.json").write_text(file, encoding="utf-8")
    ours, theirs = Tokenizer.from_folder(folder), Backend.from_str(file)
    some = texts(count, len(file))
    for special in (False, True):
        expected = [each.ids for each in theirs.encode_batch(some, add_special_tokens=special)]
        assert [ours.encode(text, add_special_tokens=special) for text in some] == expected
        for ids in expected[:50]:
            assert ours.decode(ids, skip_special_tokens=special) == theirs.decode(
                ids, skip_special_tokens=special
            )


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.gate)])
def test_whole_tokenizers(count: int, tmp_path: Path) -> None:
    demo = Path(asyncgen.__file__).with_name("demo") / "tokenizer.json"
    for file in (demo.read_text(encoding="utf-8"), *map(tokenizer_json, KINDS)):
        check(file, tmp_path, count)


def changed() -> Iterator[tuple[str, str]]:
    """Tokenizers of each model and step, and of each expression that models are known to have."""
    whole: dict[str, Any] = json.loads(tokenizer_json("byte_fallback"))
    for model in MODELS:
        yield model["type"], json.dumps({**whole, "model": model, "added_tokens": []})
    for kind in KINDS:
        whole = json.loads(tokenizer_json(kind))
        for chain, steps in STEPS.items():
            for step in steps:
                yield f"{kind} {step}"[:80], json.dumps({**whole, chain: step})
    whole = json.loads(tokenizer_json("byte_level"))
    for pattern in sorted(map(str, KNOWN_PATTERNS)):
        cut = {"pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        steps = [{"type": "Split", **cut}, {"type": "ByteLevel", **BYTES}]
        cuts = {"type": "Sequence", "pretokenizers": steps}
        yield pattern[:80], json.dumps({**whole, "pre_tokenizer": cuts})


def is_usable(file: str, count: int) -> bool:
    """Tell whether the library can use a step with this model at all."""
    try:
        backend, some = Backend.from_str(file), texts(count, len(file))
        backend.decode_batch([each.ids for each in backend.encode_batch(some)])
    except BaseException as error:  # a panic is no `Exception`
        return isinstance(error, KeyboardInterrupt)
    return True


def check_each(folder: Path, count: int) -> None:
    """Check whatever the library can use."""
    names = []
    for name, file in changed():
        if is_usable(file, count):
            names.append(name)
            try:
                check(file, folder, count)
            except AsyncgenError as error:
                pytest.fail(f"{name}: {error}")
    assert len(names) > 100


@pytest.mark.gate
def test_each_model_step_and_expression(tmp_path: Path) -> None:
    check_each(tmp_path, 4)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_each_model_step_and_expression_over_many_texts(tmp_path: Path) -> None:
    check_each(tmp_path, 2000)
