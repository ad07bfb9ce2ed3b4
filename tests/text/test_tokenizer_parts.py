"""Tests of `asyncgen.text.tokenizer_parts`: the table of steps and models, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from asyncgen.errors import ModelLoadError
from asyncgen.text.text_growth import MOST_ADDED
from asyncgen.text.tokenizer import Tokenizer
from asyncgen.text.tokenizer_parts import MODELS, MOST_AFFIX, STEPS, check_parts, kind_of, parts_of
from tests.cases import for_each
from tests.doubles.tokenizers import KINDS, tokenizer_json
from tests.text import strange_tokenizers
from tests.text.test_tokenizer_state import split, write

if TYPE_CHECKING:
    from pathlib import Path

ROOMS = {
    "normalizer": (normalizers, normalizers.Normalizer),
    "pre_tokenizer": (pre_tokenizers, pre_tokenizers.PreTokenizer),
    "post_processor": (processors, processors.PostProcessor),
    "decoder": (decoders, decoders.Decoder),
}
SLOW = split("a+a+[0-9]")
DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}


@for_each("chain", list(STEPS))
def test_the_table_has_each_step_of_the_library(chain: str) -> None:
    room, kind = ROOMS[chain]
    theirs = {
        name
        for name, each in vars(room).items()
        if isinstance(each, type) and issubclass(each, kind) and each is not kind
    }
    assert set(STEPS[chain]) == theirs
    assert set(STEPS[chain]) - {"Sequence"} == {
        step["type"] for step in strange_tokenizers.STEPS[chain]
    }


def test_the_table_has_each_model_of_the_library_with_its_keys() -> None:
    unknown = {"unk_token": "a"}
    for made in (
        models.BPE(),
        models.Unigram([("a", 0.0)], 0),
        models.WordPiece({"a": 0}, **unknown),
        models.WordLevel({"a": 0}, **unknown),
    ):
        state = json.loads(made.__getstate__())
        assert MODELS[state.pop("type")].keys() == state.keys()


def test_what_the_library_writes_is_read_and_stays_as_it_is() -> None:
    for kind in KINDS:
        state = json.loads(tokenizer_json(kind))
        before = json.dumps(state)
        assert check_parts("it", state) is False and json.dumps(state) == before
    full = Backend(models.BPE({"a": 0}, []))
    full.enable_padding(length=4, pad_to_multiple_of=3)
    full.enable_truncation(5)
    full.add_special_tokens(["x"])
    assert check_parts("it", json.loads(full.to_str())) is False


def test_each_step_of_the_fuzz_is_read_by_both(tmp_path: Path) -> None:
    for chain, steps in strange_tokenizers.STEPS.items():
        for number, step in enumerate(steps):
            changes: dict[str, Any] = {chain: step}
            folder = write(tmp_path / f"{chain}{number}", "byte_fallback", **changes)
            assert Tokenizer.from_folder(folder).encode_ids("Hello 12") != []


@for_each(
    ("chain", "step", "key"),
    [
        *(("pre_tokenizer", {**SLOW, name: []}, name) for name in ("decoders", "normalizers")),
        ("normalizer", {**DOUBLE, "processors": []}, "processors"),
        ("decoder", {"type": "Sequence", "decoders": [{**DOUBLE, "decoders": []}]}, "decoders"),
        ("post_processor", {"type": "ByteLevel", "trim_offsets": True, "single": []}, "single"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [], "pattern": ""}, "pattern"),
        ("normalizer", {"normalizers": [], "decoders": []}, "decoders"),
        ("model", {"type": "BPE", "vocab": {}, "merges": [], "unk_id": 0}, "unk_id"),
    ],
)
def test_a_key_that_a_type_does_not_have(chain: str, step: Any, key: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {chain: step}
    write(tmp_path, **changes)
    if chain == "model":
        state = json.loads(tokenizer_json("byte_level"))
        (tmp_path / "tokenizer.json").write_text(json.dumps({**state, "model": step}))
    with pytest.raises(ModelLoadError, match=f"has the key '{key}', which nothing reads"):
        Tokenizer.from_folder(tmp_path)


@for_each(
    ("chain", "step", "said"),
    [
        ("normalizer", {"type": "Magic"}, "the step 'Magic' of `normalizer` has the type 'Magic'"),
        ("decoder", {"type": "NFC"}, "has the type 'NFC': Sequence, BPEDecoder"),
        ("pre_tokenizer", {"type": None, "replacement": "x"}, "has the type 'None'"),
        ("post_processor", {"type": ["ByteLevel"]}, "of `post_processor` has the type"),
        ("normalizer", {}, "'a step without a type'"),
        ("normalizer", {"type": "Sequence", "normalizers": ["NFC"]}, "'NFC', which is no step"),
        ("normalizer", "NFC", "`normalizer` of it is 'NFC': must be an object"),
    ],
)
def test_a_step_of_no_known_type(chain: str, step: Any, said: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {chain: step}
    with pytest.raises(ModelLoadError) as caught:
        Tokenizer.from_folder(write(tmp_path, **changes))
    assert said in str(caught.value) and "tokenizer.json is not a tokenizer" in str(caught.value)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    for key, twice in (
        ("normalizer", text.replace('"normalizer"', '"normalizer": null, "normalizer"', 1)),
        ("dropout", text.replace('"dropout"', '"dropout": 0.5, "dropout"', 1)),
        ("!", text.replace('"!":', '"!": 7, "\\u0021":', 1)),
    ):
        file.write_text(twice, encoding="utf-8")
        with pytest.raises(ModelLoadError, match=f"the key '{key}' stands twice in an object"):
            Tokenizer.from_folder(tmp_path)


def test_files_of_old_versions_say_no_types_and_have_other_keys(tmp_path: Path) -> None:
    meta = {"replacement": "\u2581", "add_prefix_space": True, "str_rep": "\u2581"}
    state = json.loads(tokenizer_json("byte_fallback"))
    plain = Tokenizer.from_folder(write(tmp_path / "new", "byte_fallback", pre_tokenizer=None))
    del state["model"]["type"]
    for step in (state["normalizer"], *state["normalizer"]["normalizers"], state["decoder"]):
        del step["type"]
    old = tmp_path / "old"
    write(old, "byte_fallback")
    (old / "tokenizer.json").write_text(json.dumps(state))
    text = "Hello caf\u00e9 12"
    assert Tokenizer.from_folder(old).encode_ids(text) == plain.encode_ids(text)
    write(old, "metaspace", pre_tokenizer=meta)
    assert Tokenizer.from_folder(old).encode_ids(text)
    assert kind_of({"vocab": {}, "unk_token": ""}) == "WordLevel"
    assert [*parts_of({"normalizers": [{"prepend": "a"}]})] == [{"prepend": "a"}]


LONG = "#" * (MOST_AFFIX + 1)


@for_each(
    ("kind", "changes", "said"),
    [
        ("wordpiece", {"model": {"continuing_subword_prefix": LONG}}, "`continuing_subword_pr"),
        ("byte_level", {"model": {"end_of_word_suffix": LONG}}, "`end_of_word_suffix` of its mo"),
        ("wordpiece", {"decoder": {"type": "WordPiece", "prefix": LONG}}, "`prefix` of the step"),
        ("wordpiece", {"decoder": {"type": "BPEDecoder", "suffix": LONG}}, "`suffix` of the step"),
        ("byte_level", {"model": {"unk_token": "a" * 65}}, "`unk_token` of its model is"),
        (
            "byte_level",
            {"normalizer": {"type": "Replace", "pattern": {"String": LONG}, "content": ""}},
            "`pattern` of the step 'Replace'",
        ),
        ("byte_level", {"pre_tokenizer": {"type": "Metaspace", "replacement": LONG}}, "`replace"),
        ("byte_level", {"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "`length` of the"),
        ("byte_level", {"decoder": {"type": "Strip", "content": "a", "stop": -1}}, "`stop` of"),
        ("byte_level", {"padding": {"strategy": "BatchLongest", "pad_id": -1}}, "`pad_id` of `pa"),
        ("byte_level", {"added_tokens": [{"id": 2**32 - 1, "content": "a"}]}, "`id` of a token"),
    ],
)
def test_values_that_no_model_has(
    kind: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=f"tokenizer.json: {said}"):
        Tokenizer.from_folder(write(tmp_path, kind, **changes))


def template(ids: int, times: int, more: int = 0) -> dict[str, Any]:
    special = {"SpecialToken": {"id": "a", "type_id": 0}}
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [special] * times + [piece] * (1 + more),
        "pair": [piece, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"a": {"id": "a", "ids": [1] * ids, "tokens": ["a"] * ids}},
    }


def chained(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "processors": list(steps)}


@for_each(
    ("step", "said"),
    [
        (template(1000, 2000), "must be a list of at most 128 objects"),
        (template(10_000, 1), "`special_tokens` of the step 'TemplateProcessing'"),
        (template(33, 2), f"66 tokens are added to a text; at most {MOST_ADDED} are"),
        (chained(template(30, 1), template(1, 1, 2)), "91 tokens are added"),
        (
            chained(*[{"type": "BertProcessing", "sep": ["a", 0], "cls": ["b", 1]}] * 40),
            "'BertProcessing' of `post_processor` 66 tokens are added",
        ),
    ],
)
def test_templates_that_add_more_tokens_than_any_model_does(
    step: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=said):
        Tokenizer.from_folder(write(tmp_path, post_processor=step))


@for_each("key", ["single", "pair", "special_tokens"])
def test_a_template_of_a_token_that_it_does_not_have(key: str, tmp_path: Path) -> None:
    step = template(1, 1)
    step[key] = {} if key == "special_tokens" else [{"SpecialToken": {"id": "b", "type_id": 0}}]
    said = (
        f"a template of `post_processor` puts in '{'a' if key == 'special_tokens' else 'b'}', whi"
    )
    with pytest.raises(ModelLoadError, match=said):
        Tokenizer.from_folder(write(tmp_path, post_processor=chained(step)))


def test_a_template_adds_some_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write(tmp_path, post_processor=template(8, 8)))
    assert tokenizer.encode_ids("a")[:64] == [1] * 64


def test_a_template_of_one_text_that_asks_for_two(tmp_path: Path) -> None:
    step = template(1, 1)
    step["single"] = step["pair"]
    with pytest.raises(
        ModelLoadError, match=r"`single` of the step 'TemplatePro.* of text A alone"
    ):
        Tokenizer.from_folder(write(tmp_path, post_processor=step))
