"""Tests of `asyncgen.text.text_growth`: no chain of steps lengthens a text without measure."""

from __future__ import annotations

import base64
import io
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers

from asyncgen.checkpoints.charsmap import charsmap_growth
from asyncgen.errors import ModelLoadError
from asyncgen.text.sentencepiece_model import read_sentencepiece
from asyncgen.text.text_growth import MOST_GROWTH, check_growth, growing_letters
from asyncgen.text.tokenizer import Tokenizer
from tests.cases import for_each
from tests.doubles.tokenizers import KINDS, save_tokenizer, tokenizer_json

if TYPE_CHECKING:
    from pathlib import Path

Step = dict[str, Any]


def replace(old: str, new: str) -> Step:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def replace_all(regex: str, new: str) -> Step:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": new}


def chain(*parts: Step, name: str = "normalizers") -> Step:
    return {"type": "Sequence", name: list(parts)}


def plain(kind: str, **more: object) -> Step:
    return {"type": kind, **more}


DOUBLE = replace("e", "ee")
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
    "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
    "special_tokens": {},
}
ENDLESS: dict[str, tuple[str, Step, str]] = {
    "a letter": ("normalizer", chain(*[DOUBLE] * 60), "Replace"),
    "no types": ("normalizer", {"normalizers": [{**DOUBLE, "type": "Replace"}] * 60}, "Replace"),
    "no type": (
        "normalizer",
        {"normalizers": [{"pattern": {"String": "e"}, "content": "ee"}] * 60},
        "Replace",
    ),
    "sequences": (
        "normalizer",
        chain(chain(*[DOUBLE] * 30), chain(chain(*[DOUBLE] * 30))),
        "Replace",
    ),
    "an expression": ("normalizer", chain(*[replace_all("[a-z]", "ab")] * 60), "Replace"),
    "nothing": ("normalizer", chain(*[replace("", "xy")] * 60), "Replace"),
    "one": ("normalizer", replace(" ", "x" * 100), "Replace"),
    "in front": ("normalizer", chain(*[plain("Prepend", prepend="ab")] * 60), "Prepend"),
    "a long one": ("normalizer", plain("Prepend", prepend="x" * 100), "Prepend"),
    "bytes": ("normalizer", chain(*[plain("ByteLevel")] * 60), "ByteLevel"),
    "apart and together": (
        "normalizer",
        chain(*[replace("\u0627", "\ufdfa"), plain("NFKD")] * 20),
        "NFKD",
    ),
    "Chinese": ("normalizer", chain(*[plain("BertNormalizer")] * 60), "BertNormalizer"),
    "bytes of pieces": (
        "pre_tokenizer",
        chain(*[plain("ByteLevel", add_prefix_space=False)] * 60, name="pretokenizers"),
        "ByteLevel",
    ),
    "spaces of pieces": (
        "pre_tokenizer",
        chain(*[plain("Metaspace", replacement="\u2581")] * 60, name="pretokenizers"),
        "Metaspace",
    ),
    "templates": (
        "post_processor",
        chain(*[TEMPLATE] * 60, name="processors"),
        "TemplateProcessing",
    ),
    "decoders": ("decoder", chain(*[DOUBLE] * 60, name="decoders"), "Replace"),
    "decoding bytes": ("decoder", chain(*[plain("ByteLevel")] * 60, name="decoders"), "ByteLevel"),
    "decoding all": (
        "decoder",
        chain(*[replace_all(".", "ab")] * 60, name="decoders"),
        "Replace",
    ),
}


@for_each("name", list(ENDLESS))
def test_chains_that_grow_without_measure_are_refused_by_name(name: str) -> None:
    where, steps, step = ENDLESS[name]
    with pytest.raises(ModelLoadError) as caught:
        check_growth("tokenizer.json", {where: steps})
    message = str(caught.value)
    assert message.startswith("tokenizer.json: ") and f"`{where}`" in message
    assert f"'{step}'" in message and f"at most {MOST_GROWTH} times" in message


@cache
def charsmap(rule: str) -> bytes:
    """Rules of SentencePiece, as a model of it has them."""
    pieces = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    pieces.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world", "foo bar baz"] * 20),
        model_writer=written,
        vocab_size=30,
        hard_vocab_limit=False,
        normalization_rule_name=rule,
        minloglevel=9,
    )
    return written.getvalue()


def rules(tmp_path: Path, rule: str) -> bytes:
    (tmp_path / "a.model").write_bytes(charsmap(rule))
    return read_sentencepiece(tmp_path / "a.model").charsmap


@for_each("rule", ["nfkc", "nmt_nfkc_cf"])
def test_rules_of_sentencepiece_lengthen_as_normal_forms_do(rule: str, tmp_path: Path) -> None:
    found = rules(tmp_path, rule)
    growth = charsmap_growth(found)
    assert 10 < growth < 16
    normalizer = normalizers.Precompiled(found)
    for letter in growing_letters():
        assert len(normalizer.normalize_str(letter).encode()) <= growth * len(letter.encode())


def test_chains_of_real_families_pass(tmp_path: Path) -> None:
    precompiled = plain(
        "Precompiled",
        precompiled_charsmap=base64.b64encode(rules(tmp_path, "nmt_nfkc_cf")).decode(),
    )
    space = "\u2581"
    spaces = replace_all(" {2,}", space)
    for steps in (
        [plain("Prepend", prepend=space), replace(" ", space)],  # Llama
        [replace(" ", space)],  # Gemma
        [precompiled, plain("Strip"), spaces],  # T5
        [precompiled, plain("NFKC"), replace_all(" +\u2581", space), spaces],  # Seamless
        [  # ALBERT
            replace("``", '"'),
            plain("NFKD"),
            plain("StripAccents"),
            plain("Lowercase"),
            precompiled,
            replace_all(" {2,}", " "),
        ],
        [plain("NFC"), replace_all(r"\s+", " "), plain("Lowercase")],  # CLIP
        [plain("NFKC"), replace(" ", space)],
        [plain("BertNormalizer")],
        [plain("ByteLevel")],
    ):
        check_growth("it", {"normalizer": chain(*steps)})
    for kind in KINDS:
        check_growth("it", json.loads(tokenizer_json(kind)))


def test_the_bound_holds_for_what_the_library_makes() -> None:
    whole = json.loads(Backend(models.BPE()).to_str())
    for steps in ([DOUBLE] * 5, [plain("NFKC"), replace(" ", "\u2581")], [plain("ByteLevel")] * 5):
        check_growth("it", {"normalizer": chain(*steps)})
        normalizer = Backend.from_str(json.dumps({**whole, "normalizer": chain(*steps)})).normalizer
        for text in ("e" * 100, "\ufdfa" * 100, " " * 100, "\u00ff" * 100):
            made = normalizer.normalize_str(text)
            assert len(made.encode()) <= MOST_GROWTH * len(text.encode())


def test_a_folder_with_such_a_chain_is_refused_at_once(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level")
    file = tmp_path / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**state, "normalizer": chain(*[DOUBLE] * 60)}), encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"tokenizer.json: with the step 'Replace' of `norm"):
        Tokenizer.from_folder(tmp_path)
