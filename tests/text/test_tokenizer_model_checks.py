"""Tests of `asyncgen.text.tokenizer_model_checks`: models over which the library gives up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.checkpoints import tokenizer_sizes
from asyncgen.checkpoints.tokenizer_sizes import check_tree
from asyncgen.errors import ModelLoadError
from asyncgen.runtime.wanted import UnwantedError, asking
from asyncgen.text import tokenizer_state
from asyncgen.text.tokenizer import Tokenizer
from asyncgen.text.tokenizer_model_checks import MOST_PIECE, check_vocabulary
from asyncgen.text.tokenizer_parts import MOST_ID, MOST_TOKEN
from asyncgen.text.tokenizer_state import read_state
from tests.cases import for_each
from tests.text.test_tokenizer_state import write

if TYPE_CHECKING:
    from pathlib import Path


def model_of(folder: Path, **model: Any) -> Path:
    """Write a tokenizer with no other steps than its model."""
    write(folder)
    empty = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    state: dict[str, Any] = {"version": "1.0", "added_tokens": [], **empty, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(state))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def bpe(merge: Any, **more: Any) -> dict[str, Any]:
    tokens = ("a", "\u00e9", "a\u00e9", "xa", "ax", "aa", "aaa")
    vocab = {token: number for number, token in enumerate(tokens)}
    return {"type": "BPE", "vocab": vocab, "merges": [merge], **more}


@for_each(
    ("merge", "prefix", "said"),
    [
        (["a", "\u00e9"], "x", r"the merge \['a', '\xe9'\] of its model has no second token"),
        ("a \u00e9", "x", "the merge 'a \xe9' of its model has no second token"),
        (["a", "a"], "xxxx", "with `continuing_subword_prefix`, which is 'xxxx'"),
        (["a"], "x", "no second token"),
        (3, "x", "the merge 3 of its model"),
        (["a", "\u00e9a"], "\u00e9", "must be of ASCII"),
    ],
)
def test_merges_that_would_end_the_process(
    merge: Any, prefix: str, said: str, tmp_path: Path
) -> None:
    model_of(tmp_path, **bpe(merge, continuing_subword_prefix=prefix))
    with pytest.raises(ModelLoadError, match=said):
        Tokenizer.from_folder(tmp_path)


def test_merges_with_a_prefix(tmp_path: Path) -> None:
    model_of(tmp_path, **bpe(["a", "xa"], continuing_subword_prefix="x"))
    assert Tokenizer.from_folder(tmp_path).tokenize("aa") == ["aa"]


def unigram(*pieces: Any, unk_id: Any = 0) -> dict[str, Any]:
    return {"type": "Unigram", "unk_id": unk_id, "vocab": [["<unk>", 0.0], *pieces]}


@for_each(
    ("model", "said"),
    [
        (unigram(["a" * 300, -1]), "a token of its model has 300 characters .*at most 256 are"),
        (unigram(["a", 1e300]), "the piece 'a' of its model has the score 1e.300: must be a num"),
        (unigram(["a", "-1"]), "the piece 'a' of its model has the score '-1'"),
        (unigram(["a"]), r"a piece of its model is \['a'\]: must be a text and its score"),
        (unigram(3), "a piece of its model is 3"),
        (unigram(unk_id=None), "`unk_id` of its model is None: must be the number of the piece"),
        (unigram(unk_id=1), "`unk_id` of its model is 1: .*from 0 to 0"),
        (bpe(["a", "a"], unk_token="?"), r"`unk_token` of its model is '\?', which is not in its"),
        (
            bpe(["a", "a"], unk_token="?", byte_fallback=True),
            r"`unk_token` of its model is '\?', which is not in its vocabulary",
        ),
        ({"type": "BPE", "merges": [], "unk_token": "?"}, r"`unk_token` of its model is '\?'"),
        ({"type": "BPE", "vocab": None, "merges": [], "unk_token": "?"}, r"`unk_token` of its"),
        ({"type": "WordLevel", "vocab": {"a": 2**22}, "unk_token": "a"}, "has the id 4194304: mu"),
        ({"type": "WordLevel", "vocab": {"a": "1"}, "unk_token": "a"}, "'a' of its model has th"),
        ({"type": "WordLevel", "vocab": {"a": True}, "unk_token": "a"}, "has the id True"),
        ({"type": "WordLevel", "vocab": {"a" * 5000: 0}, "unk_token": "a"}, "has 5000 characters"),
    ],
)
def test_models_over_which_the_library_gives_up(
    model: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=f"tokenizer.json: .*{said}"):
        Tokenizer.from_folder(model_of(tmp_path, **model))


def test_an_unknown_token_that_is_never_needed(tmp_path: Path) -> None:
    write(tmp_path, model={"unk_token": "<none>"})
    assert Tokenizer.from_folder(tmp_path).encode_ids("caf\u00e9 \U0001f600")
    pieces = model_of(tmp_path / "pieces", **unigram(["a" * MOST_PIECE, -1.0]))
    assert Tokenizer.from_folder(pieces).encode_ids("a" * 1000)


def test_more_tokens_than_any_model_has(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_sizes, "MOST_TOKENS", 2)
        for model in (unigram(["a", -1], ["b", -1]), bpe(["a", "a"])):
            with pytest.raises(ModelLoadError, match="its model has . tokens; at most 2"):
                Tokenizer.from_folder(model_of(tmp_path, **model))


def test_more_merges_than_any_model_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_of(tmp_path, **bpe(["a", "a"]))
    monkeypatch.setattr(tokenizer_sizes, "MOST_PARTS", 7)
    with pytest.raises(ModelLoadError, match="has 7 tokens and at least 1 merges; at most 7 toge"):
        Tokenizer.from_folder(folder)


def test_the_tree_of_pieces_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_sizes, "MOST_NODES", 7)
    check_tree("it", ["abc", "abd", "b\u00e9", "a"])
    with pytest.raises(ModelLoadError, match="it: the pieces of its model have more than 7 diff"):
        check_tree("it", ["abc", "abd", "b\u00e9", "\ud800"])
    with asking(lambda: False), pytest.raises(UnwantedError):
        check_tree("it", ["abcdefgh"])
    monkeypatch.setattr(tokenizer_sizes, "MOST_BYTES", 6)
    with pytest.raises(ModelLoadError, match="it: the pieces of its model have 8 bytes; at most"):
        check_tree("it", ["abcdefgh"])


def test_a_vocabulary_of_other_files() -> None:
    check_vocabulary("it", {"a" * MOST_TOKEN: 0, "b": MOST_ID - 1})
    check_vocabulary("it", {})
    with pytest.raises(ModelLoadError, match=f"it: a token of its model has {MOST_PIECE + 1} char"):
        check_vocabulary("it", {"a" * (MOST_PIECE + 1): 0}, MOST_PIECE)


@for_each(
    ("limit", "most", "content", "said"),
    [
        ("MOST_LISTS", 9, '{"x": [[],[],[],[],[],[],[],[],[]]}', "has 11 lists and objects; at m"),
        ("MOST_LISTS", 9, '{"x": [{},{},{},{},{},{},{},{},{}]}', "has 11 lists and objects; at m"),
        ("MOST_LISTS", 9, "[" * 12, "has 12 lists and objects; at most 9 are read"),
        ("MOST_ENTRIES", 9, f'{{"x": [{"1," * 10}1]}}', "has 10 entries; at most 9 are read"),
        ("MOST_ADDED", 1, '{"added_tokens": [{}, {}]}', "has 2 added tokens; at most 1 are read"),
        (
            "MOST_TEXT_ADDED",
            9,
            '{"added_tokens": [{"content": "0123456789"}]}',
            "its added tokens have 10 characters; at most 9",
        ),
    ],
)
def test_files_that_would_take_gigabytes(
    limit: str, most: int, content: str, said: str, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        owner = tokenizer_state if hasattr(tokenizer_state, limit) else tokenizer_sizes
        patch.setattr(owner, limit, most)
        with pytest.raises(ModelLoadError, match=said):
            read_state(tmp_path / "tokenizer.json", content)
