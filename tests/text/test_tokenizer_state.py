"""Tests of `asyncgen.text.tokenizer_state`: what a ``tokenizer.json`` of a stranger may say."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Regex, decoders, models
from tokenizers import Tokenizer as Backend

from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.text import tokenizer_state
from asyncgen.text.foreign_tokenizer import own_tokenizer
from asyncgen.text.known_patterns import KNOWN_PATTERNS
from asyncgen.text.tokenizer import Tokenizer
from asyncgen.text.tokenizer_state import MOST_STEPS, MOST_TRIED, read_state
from tests.cases import for_each
from tests.doubles.tokenizers import save_tokenizer, tokenizer_json

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, kind: str = "byte_level", **changes: Any) -> Path:
    """Write a tokenizer with other parts; those of the model are changed one by one."""
    save_tokenizer(folder, kind)
    state = json.loads(tokenizer_json(kind))
    state["model"] |= changes.pop("model", {})
    (folder / "tokenizer.json").write_text(json.dumps({**state, **changes}), encoding="utf-8")
    return folder


def split(regex: str) -> dict[str, Any]:
    pattern = {"Regex": regex}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def replace(regex: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": " "}


@for_each(
    ("chain", "step", "kind"),
    [
        ("pre_tokenizer", split("(a+)+b$"), "Split"),
        ("normalizer", replace("(x+x+)+y"), "Replace"),
        ("decoder", replace("(q+)+z"), "Replace"),
        (
            "normalizer",
            {"normalizers": [{"pattern": {"Regex": "(x+x+)+y"}, "content": ""}]},
            "Replace",
        ),
    ],
)
def test_expressions_that_take_too_long_are_refused_by_name(
    chain: str, step: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {chain: step}
    write(tmp_path, **changes)
    with pytest.raises(ModelLoadError) as caught:
        Tokenizer.from_folder(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'tokenizer.json'}: the regular expression '(")
    assert f"of the step '{kind}' of `{chain}` is refused: it" in message


def test_a_linear_expression_that_no_known_model_has_is_used(tmp_path: Path) -> None:
    write(tmp_path, pre_tokenizer=split(r"[a-z]+|\W"))
    assert Tokenizer.from_folder(tmp_path).encode_ids("a b")


def test_known_expressions_need_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pattern: str) -> None:
        raise AssertionError("it was tried")

    monkeypatch.setattr(tokenizer_state, "trouble_of", refuse)
    for number, pattern in enumerate(sorted(map(str, KNOWN_PATTERNS))):
        folder = write(tmp_path / str(number), pre_tokenizer=split(pattern))
        assert Tokenizer.from_folder(folder).encode_ids("a 1234")


def test_more_steps_or_expressions_than_any_model_has(tmp_path: Path) -> None:
    nothing = {"type": "Sequence", "normalizers": [{"type": "NFC"}] * (MOST_STEPS + 1)}
    with pytest.raises(ModelLoadError, match=f"259 steps; at most {MOST_STEPS} are read"):
        Tokenizer.from_folder(write(tmp_path / "steps", normalizer=nothing))
    each = [split(f"a{number}") for number in range(MOST_TRIED + 1)]
    many = {"type": "Sequence", "pretokenizers": each}
    with pytest.raises(ModelLoadError, match=f"17 regular .*; at most {MOST_TRIED} are tried"):
        Tokenizer.from_folder(write(tmp_path / "many", pre_tokenizer=many))


def test_expressions_that_take_long_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(tokenizer_state, "trouble_of", tried.append)
    monkeypatch.setattr(tokenizer_state, "seconds_of", lambda pattern: 1.6)
    several = [split(f"c{number}") for number in range(8)]
    folder = write(tmp_path, pre_tokenizer={"type": "Sequence", "pretokenizers": several})
    with pytest.raises(ModelLoadError, match=r"its 8 regular .* too long .*: 3.2 s .* at most 3 f"):
        Tokenizer.from_folder(folder)
    assert tried == ["c0", "c1"]


@for_each("dropout", [0.1, 1, 1e-9, "0.5", True])
def test_dropout_is_refused_since_a_text_would_have_other_tokens_each_time(
    dropout: object, tmp_path: Path
) -> None:
    write(tmp_path, model={"dropout": dropout})
    with pytest.raises(ModelLoadError, match=r"tokenizer.json: `dropout` of its model is .*null"):
        Tokenizer.from_folder(tmp_path)


@for_each("dropout", [None, 0, 0.0])
def test_no_dropout_is_read(dropout: object, tmp_path: Path) -> None:
    write(tmp_path, model={"dropout": dropout})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert len({tuple(tokenizer.encode_ids("hello world")) for _ in range(20)}) == 1


def test_an_object_with_dropout_is_refused() -> None:
    backend = Backend(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))
    with pytest.raises(InvalidRequestError, match="`dropout` is 0.5: "):
        own_tokenizer(backend)
    with pytest.raises(InvalidRequestError, match="`dropout` is 0.5: "):
        Tokenizer(backend)


def test_words_of_any_length_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "wordpiece", model={"max_input_chars_per_word": 10**9})
    with pytest.raises(ModelLoadError, match="`max_input_chars_per_word` of its model is 1000000"):
        Tokenizer.from_folder(tmp_path)


@for_each("content", ["", "[]", "3", "nonsense", "[" * 100_000])
def test_what_is_no_tokenizer_is_told(content: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    with pytest.raises(ModelLoadError, match=r"tokenizer.json is not a tokenizer file \(.*again"):
        read_state(file, content)


def test_a_vocabulary_without_its_unknown_token(tmp_path: Path) -> None:
    write(tmp_path, "wordpiece", model={"unk_token": "[NONE]"})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode_ids("the")
    for ask in (tokenizer.encode_ids, tokenizer, tokenizer.tokenize):
        with pytest.raises(
            InvalidRequestError, match=r"gave up over it: .*\[UNK\] token"
        ) as caught:
            ask("\u20ac")
        assert caught.value.parameter == "text"
    with pytest.raises(InvalidRequestError, match="gave up over it"):
        tokenizer(["the", "\u20ac"])


def test_what_decoding_raises_is_a_request_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUST_BACKTRACE", "0")
    backend = Backend.from_str(tokenizer_json("byte_level"))
    backend.decoder = decoders.Replace(Regex("(a+)+b$"), "")
    backend.add_tokens(["a" * 5000])
    tokenizer = Tokenizer(backend)
    token = len(tokenizer) - 1
    for ids in ([token], [token] * 3000):
        with pytest.raises(InvalidRequestError, match="`token_ids` is .*gave up over it"):
            tokenizer.decode(ids)
    with pytest.raises(InvalidRequestError, match="`tokens` is .*gave up over it"):
        tokenizer.convert_tokens_to_string(["a" * 5000])


def test_thousands_of_added_tokens_are_added_in_no_time(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level")
    size = Backend.from_str(tokenizer_json("byte_level")).get_vocab_size()
    texts = {f"<tool {number}>": size + number for number in range(8000)}
    (tmp_path / "added_tokens.json").write_text(json.dumps(texts))
    start = time.process_time()
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert time.process_time() - start < 5
    assert tokenizer.convert_tokens_to_ids(list(texts)) == list(texts.values())
    (tmp_path / "added_tokens.json").write_text(json.dumps({**texts, "<one more>": size + 8001}))
    with pytest.raises(ModelLoadError, match=f"'<one more>' should have id {size + 8001}, but"):
        Tokenizer.from_folder(tmp_path)
