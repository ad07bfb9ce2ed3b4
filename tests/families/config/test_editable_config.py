"""``model.config`` in use: attributes that can be set, that are read, and that are read-only."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen import AsyncLLM
from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import EditableConfig, ModelConfig
from asyncgen.generation.config import GenerationConfig
from asyncgen.reference.load_model import PreTrainedModel, load_model
from tests.cases import for_each
from tests.doubles.checkpoints import CONFIG, save_checkpoint
from tests.doubles.models import byte_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.tensor([[3, 17, 25]])


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedModel:
    save_checkpoint(tmp_path)
    return load_model(tmp_path, device="cpu")


def config_of(**values: Any) -> EditableConfig:
    return EditableConfig(ModelConfig.from_hf({**CONFIG, **values}))


def seen(model: Any, name: str, value: object) -> dict[str, object]:
    """Return the attribute as a call and a generation see it."""
    setattr(model.config, name, value)
    assert getattr(model.config, name) == value
    found: dict[str, object] = {"call": sorted(model(IDS).keys())}
    try:
        found["generate"] = model.generate(IDS, max_new_tokens=4, pad_token_id=0).tolist()
    except ValueError:
        found["generate"] = "refused"
    config = type(model.generation_config)(max_new_tokens=3, pad_token_id=0)
    found["with config"] = model.generate(IDS, generation_config=config).tolist()
    return found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pad_token_id", 2),
        ("eos_token_id", 7),
        ("bos_token_id", 7),
        ("use_cache", False),
        ("output_attentions", True),
        ("output_hidden_states", True),
        ("temperature", 0.5),
        ("do_sample", True),
        ("max_length", 9),
        ("num_beams", 2),
        ("repetition_penalty", 3.0),
        ("top_k", None),
        ("my_own", {"any": "thing"}),
    ],
)
def test_read_as_the_reference_does(tmp_path: Path, name: str, value: object) -> None:
    transformers = pytest.importorskip("transformers")
    save_checkpoint(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(tmp_path), attn_implementation="eager"
    )
    ours = load_model(tmp_path, device="cpu")
    assert seen(ours, name, value) == seen(theirs.eval(), name, value)


def test_a_call_wins_over_the_configuration(model: PreTrainedModel) -> None:
    model.config.update({"use_cache": False, "return_dict": False, "output_hidden_states": True})
    logits, states = model(IDS)
    assert logits.shape[:2] == (1, 3) and len(states) == 3
    output = model(IDS, use_cache=True, return_dict=True, output_hidden_states=False)
    assert output.past_key_values.get_seq_length() == 3 and output.hidden_states is None


@for_each(
    ("kind", "name", "value"),
    [
        ("llama", "hidden_size", 64),
        ("llama", "num_hidden_layers", 1),
        ("llama", "vocab_size", 32),
        ("llama", "max_position_embeddings", 8),
        ("llama", "rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("llama", "tie_word_embeddings", True),
        ("llama", "is_encoder_decoder", True),
        ("llama", "to_dict", 1),
        ("llama", "changes", {}),
        ("gpt2", "n_embd", 64),
        ("t5", "d_model", 64),
    ],
)
def test_read_only_says_why(kind: str, name: str, value: object) -> None:
    config = config_of(model_type=kind, rope_scaling=None)
    before = config.to_dict()
    with pytest.raises(InvalidRequestError, match=f"`model.config.{name}` is .*: read-only, becau"):
        setattr(config, name, value)
    with pytest.raises(InvalidRequestError, match="read-only"):
        config.update({"my_own": 1, name: value})
    assert config.to_dict() == before and not config.changes


def test_a_dtype_is_changed_by_converting() -> None:
    with pytest.raises(InvalidRequestError, match=r"model\.to\(dtype\)"):
        setattr(config_of(), "torch_dtype", "float16")  # noqa: B010


def test_keys_of_the_file_are_there() -> None:
    config = config_of(architectures=["LlamaForCausalLM"], initializer_range=0.02)
    assert config.architectures == ["LlamaForCausalLM"] and config.initializer_range == 0.02
    assert config.hidden_size == CONFIG["hidden_size"] and config.use_cache is True
    assert config_of(use_cache=False).use_cache is False
    assert config.get_text_config() is config and config.use_return_dict
    assert isinstance(config, ModelConfig) and {"hidden_size", "architectures"} <= {*dir(config)}
    assert config_of(model_type="t5").is_encoder_decoder
    assert not hasattr(config, "temperature")


def test_edits_stay_in_one_copy_of_the_config() -> None:
    built = ModelConfig.from_hf({**CONFIG, "eos_token_id": [2, 3]})
    one, other = EditableConfig(built), EditableConfig(built)
    assert one == other
    one.eos_token_id.append(4)  # type: ignore[union-attr]
    one.pad_token_id = 5
    assert one.eos_token_id == [2, 3, 4] and other.eos_token_id == built.eos_token_id == [2, 3]
    assert one != other and built.pad_token_id is None and one.to_dict()["pad_token_id"] == 5
    assert "pad_token_id" in repr(one)
    assert GenerationConfig.from_model_config(one).pad_token_id == 5
    del one.pad_token_id
    assert one.pad_token_id is None
    with pytest.raises(AttributeError, match="was not set"):
        del one.hidden_size


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_copies(copied: Any) -> None:
    config = config_of()
    config.pad_token_id = 5
    twin = copied(config)
    assert twin == config and twin.pad_token_id == 5
    twin.pad_token_id = 6
    assert config.pad_token_id == 5


@pytest.mark.anyio
async def test_a_stream_refuses_it_as_well(model: PreTrainedModel) -> None:
    async with AsyncLLM(model, tokenizer=byte_tokenizer()) as llm:
        llm.config.temperature = 0.5  # type: ignore[attr-defined]
        with pytest.raises(InvalidRequestError, match=r"model\.generation_config\.temperature"):
            await llm.generate([3, 17], max_new_tokens=2)
        done = await llm.generate([3, 17], generation_config=GenerationConfig(max_new_tokens=2))
        assert len(done.token_ids) <= 2


def test_the_core_keeps_the_frozen_values(model: PreTrainedModel) -> None:
    assert type(model.core.config) is ModelConfig
