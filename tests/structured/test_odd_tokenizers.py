"""A tokenizer that llguidance cannot take is refused by name, and looked at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.structured import grammar_compiler
from tests.cases import for_each

llguidance = pytest.importorskip("llguidance")

DEMO = Path(asyncgen.__file__).parent / "demo"
LONG = {"letters": "a" * 4096, "wide letters": "\U0001f600" * 4096, "marked": f"<{'a' * 4094}>"}


def with_token(folder: Path, text: str) -> Path:
    """Copy the demo model; its last added token is another one."""
    shutil.copytree(DEMO, folder)
    file = folder / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    last = state["added_tokens"][-1]
    vocabulary = state["model"]["vocab"]
    if last["content"] in vocabulary:
        vocabulary[text] = vocabulary.pop(last["content"])
    last.update(content=text, special=False)
    file.write_text(json.dumps(state), encoding="utf-8")
    return folder


@pytest.mark.gate
@for_each("kind", LONG)
def test_a_token_that_is_too_long_for_structured_output(
    kind: str, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    known = llguidance.LLTokenizer

    def counted(*args: Any, **more: Any) -> Any:
        made.append(1)
        return known(*args, **more)

    monkeypatch.setattr(llguidance, "LLTokenizer", counted)
    folder = with_token(tmp_path_factory.mktemp("folder") / "it", LONG[kind])
    with asyncgen.LLM(folder, device="cpu", progress=False) as llm:
        for asked in ({"regex": "a+"}, {"json_schema": {"type": "object"}}, {"regex": "b+"}):
            with pytest.raises(InvalidRequestError, match="a token of more than 1024 bytes"):
                llm.generate("Hello", max_new_tokens=4, **asked)
        assert len(llm.generate("Hello", max_new_tokens=4).token_ids) == 4
    assert made == [1]


def test_more_than_the_largest_vocabularies_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree of 60,000 tokens of 1,000 letters took 2 GB, and held the process for seconds."""
    folder = shutil.copytree(DEMO, tmp_path / "it")
    file = folder / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = state["model"]["vocab"]
    vocabulary |= {f"{number:x}".ljust(1000, "y"): 5000 + number for number in range(8400)}
    file.write_text(json.dumps(state), encoding="utf-8")
    with asyncgen.LLM(folder, device="cpu", progress=False) as llm:
        with pytest.raises(InvalidRequestError, match="tokens of at most 8388608 bytes, not 84"):
            llm.generate("Hello", regex="a+")
        tokenizer = llm.tokenizer
        monkeypatch.setattr(grammar_compiler, "_MOST_TOKENS", 99)
        with pytest.raises(InvalidRequestError, match=r"at most 99 tokens, not 10\d{3}"):
            grammar_compiler.compiler_of("regex", tokenizer, 20_000)
        assert llm.generate("Hello", max_new_tokens=3).token_ids


@for_each("is_shadow", [True, False])
def test_more_added_tokens_than_models_have(
    is_shadow: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Time goes with their square: 200,000 held the process for minutes."""
    folder = shutil.copytree(DEMO, tmp_path_factory.mktemp("folder") / "it")
    file = folder / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    last = state["added_tokens"][-1]
    for number in range(2**14):
        own = {"id": 5000 + number, "content": f"<|{number}|>", "special": False}
        state["added_tokens"].append({**last, **own})
        if is_shadow:
            state["model"]["vocab"][own["content"]] = own["id"]
    file.write_text(json.dumps(state), encoding="utf-8")
    with (
        asyncgen.LLM(folder, device="cpu", progress=False) as llm,
        pytest.raises(InvalidRequestError, match="at most 16384 added tokens, not 16391"),
    ):
        llm.generate("Hello", regex="a+")


def test_a_token_of_the_greatest_length(tmp_path: Path) -> None:
    folder = with_token(tmp_path / "it", "a" * 1024)
    with asyncgen.LLM(folder, device="cpu", progress=False) as llm:
        assert llm.generate("Hello", regex="b{3}", max_new_tokens=9).text == "bbb"
