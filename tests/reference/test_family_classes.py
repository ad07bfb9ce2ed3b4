"""The classes of every family: what they load, and what they leave to others."""

from __future__ import annotations

import copy
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError, UnsupportedModelError
from asyncgen.families.arch.registry import FAMILIES as DECLARED
from asyncgen.reference.family_classes import CLASSES, TOKENIZERS
from tests.cases import for_each
from tests.checkpoints.test_saving import FAMILIES, tokens
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.tokenizers import save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

OPTIONS: dict[str, Any] = {
    "device_map": "cpu",
    "attn_implementation": "eager",
    "low_cpu_mem_usage": True,
    "local_files_only": True,
    "trust_remote_code": False,
}


TYPES = [name for name in FAMILIES if name in DECLARED]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of every family."""
    top = tmp_path_factory.mktemp("families")
    for model_type in TYPES:
        save_checkpoint(top / model_type, **FAMILIES[model_type])
        save_tokenizer(top / model_type, "byte_level")
    return {model_type: top / model_type for model_type in TYPES}


@for_each("model_type", TYPES)
def test_a_class_loads_its_family(model_type: str, folders: dict[str, Path]) -> None:
    kind = DECLARED[model_type]
    own: Any = getattr(asyncgen, kind.class_name)
    model = own.from_pretrained(folders[model_type], torch_dtype=torch.float32, **OPTIONS)
    assert type(model) is own and isinstance(model, asyncgen.PreTrainedModel)
    assert repr(own) == f"<class 'asyncgen.{kind.class_name}'>"
    assert isinstance(model, asyncgen.Seq2SeqModel) is kind.has_encoder
    name = "AutoModelForSeq2SeqLM" if kind.has_encoder else "AutoModelForCausalLM"
    assert type(getattr(asyncgen, name).from_pretrained(folders[model_type])) is own
    assert type(asyncgen.load_model(folders[model_type])) is own
    assert type(copy.deepcopy(model)) is own and pickle.loads(pickle.dumps(own)) is own
    theirs = getattr(transformers, kind.class_name).from_pretrained(
        # A `device_map` needs a package of its own there.
        str(folders[model_type]),
        torch_dtype=torch.float32,
        **{**OPTIONS, "device_map": None},
    )
    assert tokens(model) == tokens(theirs.eval())


@pytest.mark.parametrize("model_type", TYPES)
def test_another_family_is_refused_by_both_names(
    model_type: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncgen.reference.model_loader.load_weights", None)  # nothing is read
    for other, folder in folders.items():
        if other != model_type:
            right = f"{DECLARED[model_type].class_name}.*'{other}'.*{DECLARED[other].class_name}"
            with pytest.raises(UnsupportedModelError, match=right):
                CLASSES[DECLARED[model_type].class_name].from_pretrained(folder)


def test_family_classes_check_keywords_and_checkpoint_kind(folders: dict[str, Path]) -> None:
    with pytest.raises(InvalidRequestError, match=r"`LlamaForCausalLM.from_pretrained` does not"):
        asyncgen.LlamaForCausalLM.from_pretrained(folders["llama"], load_in_2bit=True)  # type: ignore[call-arg]
    model = asyncgen.LlamaForCausalLM.from_pretrained(folders["llama"], use_cache=False)
    assert model.config.use_cache is False
    for kind, folder in ((asyncgen.PreTrainedModel, "t5"), (asyncgen.Seq2SeqModel, "llama")):
        with pytest.raises(UnsupportedModelError, match=f"`{kind.__name__}` loads models with"):
            kind.from_pretrained(folders[folder])
    any_model = asyncgen.PreTrainedModel.from_pretrained(folders["llama"])
    assert tokens(any_model) == tokens(model)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(name: str, tmp_path: Path) -> None:
    own: Any = getattr(asyncgen, name)
    folder = save_tokenizer(tmp_path, "byte_level", tokenizer_class=name)
    tokenizer = own.from_pretrained(folder, padding_side="right", pad_token="<|im_start|>")
    assert type(tokenizer) is own and isinstance(tokenizer, asyncgen.Tokenizer)
    assert tokenizer.padding_side == "right" and tokenizer.pad_token == "<|im_start|>"
    assert tokenizer.encode("Hello dog") == asyncgen.load_tokenizer(folder).encode("Hello dog")
    twin = name.removesuffix("Fast") if name.endswith("Fast") else f"{name}Fast"
    assert type(getattr(asyncgen, twin).from_pretrained(folder)) is getattr(asyncgen, twin)
    assert asyncgen.PreTrainedTokenizerFast.from_pretrained(folder).padding_side == "left"
    for other in TOKENIZERS.keys() - {name, twin}:
        with pytest.raises(UnsupportedModelError, match=f"`{other}`.*`{name}`"):
            getattr(asyncgen, other).from_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == name
    with pytest.raises(InvalidRequestError, match=f"`{name}.from_pretrained` does not take it"):
        own.from_pretrained(folder, vocab_file="x")
