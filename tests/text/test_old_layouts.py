"""Tokenizers without ``tokenizer.json``: the ids of the reference, and of SentencePiece."""

from __future__ import annotations

import io
import json
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.errors import ModelLoadError, UnsupportedModelError
from asyncgen.text.tokenizer import Tokenizer
from tests.cases import for_each
from tests.checkpoints.gguf.test_tokenizer import CORPUS, texts
from tests.doubles.tokenizers import tokenizer_json

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers", "5.23")
sentencepiece = pytest.importorskip("sentencepiece")

LLAMA: dict[str, Any] = {
    "model_type": "bpe",
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    "split_digits": True,
    "user_defined_symbols": ["<tool>"],
}
GEMMA = {**LLAMA, "add_dummy_prefix": False, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
T5: dict[str, Any] = {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
SPACED: dict[str, Any] = {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc"}


@cache
def _train(settings: str) -> bytes:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in CORPUS if text.strip()] * 4),
        model_writer=made,
        vocab_size=600,
        hard_vocab_limit=False,
        minloglevel=2,
        **json.loads(settings),
    )
    return made.getvalue()


def train(settings: dict[str, Any]) -> bytes:
    return _train(json.dumps(settings))


def write(folder: Path, model_type: str, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_merges(folder: Path, model_type: str, config: dict[str, Any]) -> Path:
    model = json.loads(tokenizer_json("byte_level"))["model"]
    write(folder, model_type, config)
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def same_as_the_reference(folder: Path, some: list[str]) -> None:
    ours = Tokenizer.from_folder(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert len(ours) == len(theirs)
    for text in some:
        ids = theirs.encode(text)
        assert ours.encode_ids(text) == ids, text
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(
                ids, skip_special_tokens=skip
            )


@for_each(
    ("model_type", "config"),
    [
        ("gpt2", {}),
        ("gpt2", {"add_prefix_space": True}),
        ("opt", {"add_bos_token": True, "bos_token": "<|im_start|>", "pad_token": "<pad>"}),
        ("codegen", {"add_eos_token": True}),
        ("gpt_neox", {"tokenizer_class": "GPTNeoXTokenizer"}),
        ("olmo", {"add_bos_token": True, "add_eos_token": True}),
        ("qwen2", {"tokenizer_class": "Qwen2Tokenizer"}),
        ("cohere", {"add_bos_token": True}),
    ],
)
def test_vocabulary_and_merges_give_the_ids_of_the_reference(
    model_type: str, config: dict[str, Any], tmp_path: Path
) -> None:
    same_as_the_reference(write_merges(tmp_path / "old", model_type, config), texts(20))


@for_each(
    ("model_type", "config", "settings"),
    [
        ("llama", {"tokenizer_class": "LlamaTokenizer"}, LLAMA),
        ("llama", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}, LLAMA),
        ("llama", {"tokenizer_class": "CodeLlamaTokenizer", "add_eos_token": True}, LLAMA),
        ("llama", {"tokenizer_class": "LlamaTokenizer", "legacy": True}, LLAMA),
        ("gemma", {"add_bos_token": True}, GEMMA),
        ("t5", {}, T5),
        ("mt5", {"extra_ids": 0}, T5),
    ],
)
def test_models_of_sentencepiece_give_the_ids_of_the_reference(
    model_type: str, config: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = write(tmp_path / "old", model_type, config)
    name = "spiece.model" if settings is T5 else "tokenizer.model"
    (folder / name).write_bytes(train(settings))
    same_as_the_reference(folder, [*texts(30), "a</s>b <tool> c", "fox</s> fox"])


@for_each(
    ("model_type", "settings"),
    [("mistral", LLAMA), ("phi3", LLAMA), ("gemma", GEMMA), ("t5", T5), ("mixtral", SPACED)],
)
def test_models_of_sentencepiece_give_the_ids_of_sentencepiece(
    model_type: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The reference splits Mistral's and Phi 3's texts without the space that they begin with."""
    folder = write(tmp_path / "old", model_type, {"tokenizer_class": "LlamaTokenizer"})
    if model_type in ("gemma", "t5"):
        folder = write(tmp_path / "old", model_type, {})
    (folder / "tokenizer.model").write_bytes(train(settings))
    ours = Tokenizer.from_folder(folder)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=train(settings))
    for text in texts(30):
        if text.startswith(" ") and settings is LLAMA:
            continue  # as the reference, no second space is put before it
        ids = theirs.encode(text)
        assert ours.encode_ids(text, add_special_tokens=False) == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text
    if model_type in ("mistral", "phi3", "mixtral"):
        assert (ours.bos_token, ours.eos_token, ours.unk_token) == ("<s>", "</s>", "<unk>")


def test_saved_tokenizer_of_an_old_layout_is_the_same(tmp_path: Path) -> None:
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    folder = write(tmp_path / "old", "llama", config)
    (folder / "tokenizer.model").write_bytes(train(LLAMA))
    ours = Tokenizer.from_folder(folder)
    ours.save_pretrained(tmp_path / "saved")
    again = Tokenizer.from_folder(tmp_path / "saved")
    for text in texts(10):
        assert again.encode_ids(text) == ours.encode_ids(text)
    assert again.special_tokens_map == ours.special_tokens_map


def test_old_layouts_that_cannot_be_read_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_merges(tmp_path / "old", "gpt_bigcode", {})
    with pytest.raises(ModelLoadError, match=r"has vocab.json but no .*without a class.*convert"):
        Tokenizer.from_folder(folder)
    folder = write_merges(tmp_path / "old", "bloom", {"tokenizer_class": "RobertaTokenizer"})
    with pytest.raises(ModelLoadError, match="of the class RobertaTokenizer; convert"):
        Tokenizer.from_folder(folder)
    folder = write_merges(tmp_path / "old", "gpt2", {})
    (folder / "merges.txt").write_text("#version: 0.2\none\n")
    with pytest.raises(ModelLoadError, match=r"vocab.json and merges.txt are no vocabulary"):
        Tokenizer.from_folder(folder)
    folder = write(tmp_path / "old", "llama", {"tokenizer_class": "LlamaTokenizer"})
    (folder / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    with pytest.raises(ModelLoadError, match=r"tokenizer.model is no"):
        Tokenizer.from_folder(folder)
    (folder / "tokenizer.model").write_bytes(train({"model_type": "char"}))
    with pytest.raises(UnsupportedModelError, match="splits by words or letters"):
        Tokenizer.from_folder(folder)
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(ModelLoadError, match=r"pip install 'asyncgen\[sentencepiece\]'"):
        Tokenizer.from_folder(folder)


OLD = {"tokenizer.model": ("LlamaTokenizer", 24), "vocab.json": ("GPT2Tokenizer", 32)}
OLD["merges.txt"] = OLD["vocab.json"]


@for_each("name", OLD)
def test_files_of_old_layouts_that_are_too_large(name: str, tmp_path: Path) -> None:
    """They are sparse, and cost nothing to make."""
    kind, most = OLD[name]
    for each in OLD:
        (tmp_path / each).write_text("")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    with (tmp_path / name).open("wb") as stream:
        stream.truncate((most << 20) + 1)
    with pytest.raises(ModelLoadError, match=f"{name} has {(most << 20) + 1} bytes; at most"):
        Tokenizer.from_folder(tmp_path)


def piece(text: bytes, kind: int = 1) -> bytes:
    """Return a piece of a model of SentencePiece, with a score of -10."""
    inner = b"\n" + bytes([len(text)]) + text + b"\x15\x00\x00\x20\xc1\x18" + bytes([kind])
    return b"\n" + bytes([len(inner)]) + inner


@pytest.mark.gate
def test_a_model_of_as_many_pieces_as_the_largest_has(tmp_path: Path) -> None:
    """XLM-V has 901,629 pieces, in 18 MB; these are longer."""
    count, letters = 901_629, b"etaoinshrdlucmfw"
    folder = write(tmp_path / "old", "t5", {"extra_ids": 0})
    words = (
        "\u2581".encode() + bytes(letters[number >> 4 * place & 15] for place in range(5))
        for number in range(count)
    )
    pieces = [piece(b"<unk>", 2), piece(b"</s>", 3), *map(piece, words)]
    size = (folder / "spiece.model").write_bytes(b"".join(pieces))
    assert 16 << 20 < size < 24 << 20
    tokenizer = Tokenizer.from_folder(folder)
    assert len(tokenizer) == count + 3  # with a token for padding


OLD_BOMBS = {
    "pieces": ("tokenizer.model", b"\n\x00" * 4_200_000, "tokens; at most 1048576"),
    "tokens": ("vocab.json", b":" * 1_100_000, "tokens; at most 1048576"),
    "lists": ("vocab.json", b'{"a":[' + b"[]," * 500_001, "lists and objects; at most 500000"),
    "merges": ("merges.txt", b"\n" * 1_100_000, "merges; at most 1048576 together"),
}


@for_each("kind", OLD_BOMBS)
def test_files_of_old_layouts_with_too_much_in_them(kind: str, tmp_path: Path) -> None:
    name, content, said = OLD_BOMBS[kind]
    for each in OLD:
        (tmp_path / each).write_text("")
    settings = {"tokenizer_class": OLD[name][0]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=f"{name}.* has .*{said}"):
        Tokenizer.from_folder(tmp_path)
