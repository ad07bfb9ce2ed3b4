"""Test that saved models load again, here and in the reference, with the same tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open

from asyncgen.checkpoints.saving import shard_bytes
from asyncgen.errors import InvalidRequestError
from asyncgen.reference.load_model import PreTrainedModel, load_model, load_tokenizer
from asyncgen.text.tokenizer import Tokenizer
from tests.cases import for_each
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.tokenizers import KINDS, save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

T5: dict[str, Any] = {
    "model_type": "t5",
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "tie_word_embeddings": True,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "llama-tied": {"tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": 5},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
             "tie_word_embeddings": True},
    "t5": T5,
    "t5-gated": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}  # fmt: skip
IDS = torch.tensor([[3, 17, 25, 40, 8, 91, 5], [60, 4, 33, 7, 7, 12, 80]])


def theirs(folder: Path, dtype: str = "auto") -> Any:
    """The reference's model of a folder."""
    is_t5 = json.loads((folder / "config.json").read_text())["model_type"] == "t5"
    auto = transformers.AutoModelForSeq2SeqLM if is_t5 else transformers.AutoModelForCausalLM
    return auto.from_pretrained(str(folder), dtype=dtype, attn_implementation="eager").eval()


def tokens(model: Any) -> list[list[int]]:
    """Generate greedily; an end-of-sequence token ends nothing."""
    made = model.generate(
        IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=12, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return made.tolist()


def changed(model: PreTrainedModel) -> None:
    """Everything that can be changed of a model in use."""
    model.config.pad_token_id = 7
    model.config.use_cache = True
    model.config.note = {"of": "mine"}
    model.generation_config.repetition_penalty = 1.3
    model.resize_token_embeddings(101, pad_to_multiple_of=8)
    table = torch.nn.Embedding(104, 32)
    torch.nn.init.normal_(table.weight, std=0.2)
    model.set_input_embeddings(table)
    model.get_output_embeddings().weight.data[100:] *= 1.5


@pytest.mark.parametrize("changes", [False, True], ids=["as loaded", "changed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_the_same_everywhere(family: str, changes: bool, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "first", **FAMILIES[family])
    model = load_model(tmp_path / "first", device="cpu")
    if changes:
        torch.manual_seed(0)
        changed(model)
    model.save_pretrained(tmp_path / "second", max_shard_size=16_000)
    shards = sorted((tmp_path / "second").glob("model-*.safetensors"))
    assert len(shards) > 2 and not (tmp_path / "second" / "model.safetensors").exists()
    again, reference = load_model(tmp_path / "second", device="cpu"), theirs(tmp_path / "second")
    assert tokens(again) == tokens(model) == tokens(reference)
    assert again.num_parameters() == model.num_parameters() == reference.num_parameters()
    for each in (again, reference):
        assert each.config.vocab_size == (104 if changes else 96)
        assert each.config.pad_token_id == model.config.pad_token_id
        if changes:
            assert each.config.note == {"of": "mine"}
            assert each.generation_config.repetition_penalty == 1.3
    assert again.generation_config == model.generation_config
    ours = {name: value.clone() for name, value in stored(tmp_path / "second").items()}
    assert len({value.data_ptr() for value in ours.values()}) == len(ours)  # nothing twice
    again.save_pretrained(tmp_path / "second")
    assert sorted(file.name for file in (tmp_path / "second").iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors"
    ]  # fmt: skip
    assert all(
        torch.equal(value, ours[name]) for name, value in stored(tmp_path / "second").items()
    )
    if not changes:
        first = stored(tmp_path / "first")
        assert first.keys() == ours.keys()
        assert all(torch.equal(value, ours[name]) for name, value in first.items())


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder."""
    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            assert tensors.metadata() == {"format": "pt"}
            found |= {name: tensors.get_tensor(name) for name in tensors.keys()}
    return found


@pytest.mark.parametrize(
    ("family", "kept"),
    [("llama", "float32"), ("llama-tied", "bfloat16"), ("llama-tied", "float32"),
     ("gpt2", "bfloat16"), ("t5", "float32")],
)  # fmt: skip
def test_in_bfloat16(family: str, kept: str, tmp_path: Path) -> None:
    """Of a file of either dtype: a table that is read a few rows a step stays as it was stored."""
    save_checkpoint(tmp_path / "first", **FAMILIES[family], stored=getattr(torch, kept))
    model = load_model(tmp_path / "first", device="cpu", dtype="bfloat16")
    model.resize_token_embeddings(100)
    model.save_pretrained(tmp_path / "second")
    assert json.loads((tmp_path / "second" / "config.json").read_text())["dtype"] == "bfloat16"
    found = stored(tmp_path / "second")
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    again = load_model(tmp_path / "second", device="cpu")
    assert again.dtype is torch.bfloat16 and tokens(again) == tokens(model)
    # Both round to 16 bits at other places, so tokens are compared where neither rounds.
    wide = load_model(tmp_path / "second", device="cpu", dtype="float32")
    reference = theirs(tmp_path / "second", dtype="float32")
    assert tokens(wide) == tokens(reference) == tokens(model.float())
    assert theirs(tmp_path / "second").dtype is torch.bfloat16


def test_a_fused_parameter_over_two_files(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "first")
    model = load_model(tmp_path / "first", device="cpu")
    model.save_pretrained(tmp_path / "second", max_shard_size=1)
    assert len(list((tmp_path / "second").glob("*.safetensors"))) == len(stored(tmp_path / "first"))
    assert tokens(load_model(tmp_path / "second", device="cpu")) == tokens(model)


def test_saving_where_it_was_loaded_from(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, shards=3)
    model = load_model(tmp_path, device="cpu")
    expected = tokens(model)
    model.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.glob("model*")] == ["model.safetensors"]
    assert tokens(load_model(tmp_path, device="cpu")) == expected


def test_failed_save_keeps_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path)
    model = load_model(tmp_path, device="cpu")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("asyncgen.checkpoints.saving._write", fail)
    with pytest.raises(OSError, match="no space"):
        model.save_pretrained(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@for_each(
    ("size", "count"),
    [(7, 7), ("5GB", 5 * 10**9), ("1.5MB", 1_500_000), ("2 KiB", 2048), ("9B", 9)],
)
def test_sizes_of_files(size: int | str, count: int) -> None:
    assert shard_bytes(size) == count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_shard_size": "5 apples"}, "`max_shard_size` is .5 apples.: a number of bytes"),
        ({"max_shard_size": 0}, "`max_shard_size` is 0"),
        ({"max_shard_size": True}, "`max_shard_size` is True"),
        ({"push_to_hub": True}, "`push_to_hub` is True"),
        ({"safe_serialization": False}, "only safetensors are written"),
        ({"state_dict": {}}, "`state_dict` is {}"),
        ({"variant": "fp16"}, "`variant` is 'fp16'"),
    ],
)
def test_save_pretrained_refuses_wrong_options(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "first")
    model = load_model(tmp_path / "first", device="cpu")
    with pytest.raises(InvalidRequestError, match=message):
        model.save_pretrained(tmp_path / "second", **options)
    assert not (tmp_path / "second").exists()


def test_save_pretrained_names_the_value_it_cannot_save(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "first")
    model = load_model(tmp_path / "first", device="cpu")
    with pytest.raises(InvalidRequestError, match="`save_directory` is .*a file"):
        model.save_pretrained(tmp_path / "first" / "config.json")
    model.config.thing = object()
    with pytest.raises(InvalidRequestError, match=r"`model.config.thing` is .*take it away"):
        model.save_pretrained(tmp_path / "second")
    del model.config.thing
    model.generation_config.temperature = 0.3
    with pytest.raises(InvalidRequestError, match="`temperature` is 0.3"):
        model.save_pretrained(tmp_path / "second")
    assert not (tmp_path / "second").exists()
    model.generation_config.do_sample = True
    model.save_pretrained(tmp_path / "second", is_main_process=False)
    assert not (tmp_path / "second").exists()


TEXTS = ["Hello world, how are you?", " naïve 漢字 😀", "def f(x):\n    return x", "<|im_end|> a"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [False, True], ids=["as loaded", "changed"])
def test_a_saved_tokenizer_is_the_same_everywhere(kind: str, changes: bool, tmp_path: Path) -> None:
    save_tokenizer(
        tmp_path / "first", kind, chat_template="{{ messages[0].content }}", model_max_length=99
    )
    tokenizer = load_tokenizer(tmp_path / "first")
    if changes:
        reference = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "first"))
        for each in (tokenizer, reference):
            assert each.add_special_tokens({"pad_token": "<new pad>"}) == 1
            assert each.add_special_tokens({"additional_special_tokens": ["<call>"]}) == 1
            assert each.add_tokens(["quickfox", "Hello"]) in (1, 2)
        assert len(reference) == len(tokenizer)
        tokenizer.chat_template = {"default": "{{ 1 }}", "tool_use": "{{ 2 }}"}
        tokenizer.padding_side = "right"
        tokenizer.model_max_length = 12
        for text in [*TEXTS, "a quickfox<call><new pad>"]:
            assert tokenizer.encode(text) == reference.encode(text)
    files = tokenizer.save_pretrained(tmp_path / "second")
    assert {str(file) for file in (tmp_path / "second").rglob("*.*")} == set(files)
    again = load_tokenizer(tmp_path / "second")
    reference = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "second"))
    for text in [*TEXTS, "a quickfox<call><new pad>"]:
        ids = tokenizer.encode(text)
        assert again.encode(text) == reference.encode(text) == ids
        for skip in (False, True):
            expected = tokenizer.decode(ids, skip_special_tokens=skip)
            assert again.decode(ids, skip_special_tokens=skip) == expected
    for each in (again, reference):
        assert each.padding_side == tokenizer.padding_side
        assert each.model_max_length == tokenizer.model_max_length
        assert set(each.all_special_tokens) == set(tokenizer.all_special_tokens)
        for role in ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token"):
            assert getattr(each, role) == getattr(tokenizer, role)
        assert each.chat_template == tokenizer.chat_template


def test_templates_of_another_tokenizer_do_not_stay(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level")
    (tmp_path / "additional_chat_templates").mkdir()
    for name in ("chat_template", "additional_chat_templates/tool_use"):
        (tmp_path / f"{name}.jinja").write_text("old")
    (tmp_path / "added_tokens.json").write_text('{"<old>": 4000}')
    backend = load_tokenizer(save_tokenizer(tmp_path / "other", "byte_level")).backend_tokenizer
    Tokenizer(backend, special_tokens={"eos_token": "<|im_end|>"}).save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.chat_template is None and "<old>" not in again.get_vocab()
    assert again.special_tokens_map == {"eos_token": "<|im_end|>"}


def test_files_with_a_prefix(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_tokenizer(tmp_path / "first", "metaspace"))
    files = tokenizer.save_pretrained(tmp_path / "second", filename_prefix="mine")
    assert all("/mine-" in file for file in files)
    for option in ("push_to_hub", "legacy_format"):
        with pytest.raises(InvalidRequestError, match=f"`{option}` is True"):
            tokenizer.save_pretrained(tmp_path, **{option: True})  # type: ignore[arg-type]


def test_tokens_that_are_none() -> None:
    tokenizer = load_tokenizer("demo")
    for bad in ("", 3, None, [""]):
        with pytest.raises(InvalidRequestError, match="`new_tokens`"):
            tokenizer.add_tokens(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="`special_tokens_dict` is 'start'"):
        tokenizer.add_special_tokens({"start": "<s>"})
