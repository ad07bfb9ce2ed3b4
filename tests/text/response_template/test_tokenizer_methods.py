"""Tokenizers keep a response template and read answers with it, as those of transformers do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.text.tokenizer import Tokenizer
from tests.doubles.models import byte_tokenizer
from tests.text.response_template.test_response_parser import ANCHOR, CHAT, TOOLS

if TYPE_CHECKING:
    from pathlib import Path

ANSWER = 'Hm</think>Hi <tool_call>{"name": "f", "arguments": {"a": "7"}}</tool_call><|im_end|>'
OPENED = f"user{ANCHOR}<think>"


@pytest.fixture
def tokenizer() -> Tokenizer:
    made = byte_tokenizer()
    made.response_template = CHAT
    return made


def test_template_is_saved_and_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = Tokenizer.from_folder(tmp_path)
    assert loaded.response_template == CHAT
    loaded.response_template = None
    assert loaded.response_template is None and "response_template" not in loaded.init_kwargs
    loaded.save_pretrained(tmp_path)
    assert Tokenizer.from_folder(tmp_path).response_template is None


def test_answers_are_read_as_transformers_reads_them(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save_pretrained(tmp_path)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert other.response_template == CHAT
    ids, opened = tokenizer.encode(ANSWER), tokenizer.encode(OPENED)
    cases: list[tuple[Any, Any]] = [
        (ANSWER, OPENED),
        (ids, opened),
        (torch.tensor(ids), torch.tensor(opened)),
        ([ANSWER, "Hm"], OPENED),
        ([ANSWER, "Hm"], [OPENED, ""]),
        ([ids, ids[:5]], opened),
        ([ids, ids[:5]], [opened, opened]),
        (torch.tensor([ids]), torch.tensor([opened])),
        ("Hi", ""),
        ("Hi", []),
        ([], ""),
    ]
    for response, prefix in cases:
        for tools in (None, TOOLS):
            found = tokenizer.parse_response(response, prefix=prefix, tools=tools)
            assert found == other.parse_response(response, prefix=prefix, tools=tools)
    own = {"start_anchor": "x", "fields": {"all": {}}}
    assert tokenizer.parse_response("Hi", own, prefix="") == {"all": "Hi"}


def test_parser_of_a_growing_answer(tokenizer: Tokenizer) -> None:
    for prefix in (OPENED, tokenizer.encode(OPENED)):
        parser = tokenizer.get_response_parser(prefix=prefix, tools=TOOLS)
        assert [event["type"] for event in parser.initial_events] == ["region_open"]
        for letter in ANSWER:
            parser.feed(letter)
        assert parser.finalize()[0] == tokenizer.parse_response(ANSWER, prefix=prefix, tools=TOOLS)


def test_what_is_missing_or_wrong_is_refused_by_name(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="prefix"):
        tokenizer.parse_response("Hi")
    with pytest.raises(InvalidRequestError, match="prefix"):
        tokenizer.get_response_parser()
    with pytest.raises(InvalidRequestError, match="prefix.*2 answers"):
        tokenizer.parse_response(["a", "b"], prefix=["x", "y", "z"])
    with pytest.raises(InvalidRequestError, match="prefix.*2 answers"):
        tokenizer.parse_response(["a", "b"], prefix=["x"])
    with pytest.raises(InvalidRequestError, match="response"):
        tokenizer.parse_response(5, prefix="")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="tools"):
        tokenizer.parse_response("a", prefix="", tools=[print])  # type: ignore[list-item]
    with pytest.raises(InvalidRequestError, match="one prompt"):
        tokenizer.get_response_parser(prefix=["a", "b"])
    tokenizer.response_template = None
    with pytest.raises(InvalidRequestError, match="response_template"):
        tokenizer.parse_response("a", prefix="")
    with pytest.raises(InvalidRequestError, match="fields"):
        tokenizer.parse_response("a", {"start_anchor": "x"}, prefix="")
