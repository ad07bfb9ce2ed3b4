"""Folders that are broken, hostile or too large: each is refused by name, before it costs much."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncgen
from asyncgen import load_model, load_tokenizer
from asyncgen.errors import AsyncgenError, ChatTemplateError, ModelLoadError
from asyncgen.text import tokenizer_state
from tests.doubles.checkpoints import CONFIG, random_weights, save_checkpoint, save_tensors

INDEX = "model.safetensors.index.json"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = {"text_config": found}
    return found


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"hidden_size": 2**70}, "hidden_size"),
        ({"hidden_size": 2**30}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**5}, "num_hidden_layers"),
        ({"num_hidden_layers": 500}, "num_hidden_layers` is 500: the weights have 2 layers"),
        ({"head_dim": 10**9}, "head_dim"),
        ({"head_dim": 96}, "head_dim` is 96: with 4 heads, no side of a stored tensor is longer"),
        ({"vocab_size": 10**9}, "vocab_size"),
        ({"intermediate_size": 10**12}, "intermediate_size"),
        ({"num_attention_heads": 2**80, "num_key_value_heads": 1}, "num_attention_heads"),
        ({"max_position_embeddings": 2**64}, "max_position_embeddings"),
        ({"sliding_window": 2**64, "model_type": "mistral"}, "sliding_window"),
        ({"eos_token_id": 2**64}, "eos_token_id"),
        ({"eos_token_id": [1, 2**64]}, "eos_token_id"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rms_norm_eps": nested(900)}, "rms_norm_eps"),
        ({"model_type": nested(900)}, "supported are"),
        ({"layer_types": nested(900)}, "layer_types"),
        ({"dtype": nested(900)}, "dtype"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"rope_parameters": nested(900)}, "rope_type"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope_scaling.factor` is 0.0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "rope_scaling.factor"),
        ({"rope_scaling": {**YARN, "factor": 0}}, "rope_scaling.factor"),
        ({"rope_scaling": {**YARN, "beta_fast": 0}}, "rope_scaling.beta_fast"),
        ({"rope_scaling": YARN, "rope_theta": 1}, "rope_theta"),
        ({"rope_scaling": {**YARN, "original_max_position_embeddings": 0}}, "original_max_pos"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.5}}, "rope_scaling.low_freq_factor"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}, "head_dim": 2}, "head_dim"),
        ({"quantization_config": "int4"}, "is quantised"),
    ],
)
def test_a_value_that_cannot_be_is_named(tmp_path: Path, keys: dict[str, Any], named: str) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **keys}))
    with pytest.raises(ModelLoadError, match=named):
        load_model(tmp_path, progress=False)


def test_a_config_that_is_nested_too_deep_to_be_read(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"a": ' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(ModelLoadError, match=r"config\.json is not valid JSON"):
        load_model(tmp_path)


@pytest.mark.parametrize("keys", [{"num_layers": 500}, {"num_decoder_layers": 500}])
def test_the_layers_of_both_stacks_are_counted(tmp_path: Path, keys: dict[str, Any]) -> None:
    shape: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    save_checkpoint(tmp_path, model_type="t5", tie_word_embeddings=True, **shape)
    stated = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stated, **keys}))
    with pytest.raises(ModelLoadError, match=r"`num_\w*layers` is 500: the weights have"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["", ".", "a" * 5000, "a\0b", "/", "x/" * 3000])
def test_a_shard_that_has_no_name_of_a_file(tmp_path: Path, name: str) -> None:
    tensors = save_checkpoint(tmp_path, shards=2)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, name)}))
    with pytest.raises(ModelLoadError, match=r"model\.safetensors\.index\.json") as caught:
        load_model(tmp_path)
    assert len(str(caught.value)) < 600


def write_header(folder: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_empty_tensors_bear_nothing_out(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    entry = {"dtype": "F32", "shape": [0, 2**31 - 1], "data_offsets": [0, 0]}
    write_header(tmp_path, {"model.layers.0.x": entry}, b"")
    (tmp_path / "config.json").write_text(
        json.dumps({**CONFIG, "num_hidden_layers": 1, "vocab_size": 2**31 - 1})
    )
    with pytest.raises(ModelLoadError, match="vocab_size"):
        load_model(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_data_that_is_not_aligned(tmp_path: Path, tied: bool) -> None:
    """The format allows it; other readers read it."""
    tensors = save_checkpoint(tmp_path / "plain", tie_word_embeddings=tied, hidden_size=64)
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "config.json").write_bytes((tmp_path / "plain/config.json").read_bytes())
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        offsets = [len(data), len(data) + len(raw)]
        entry = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        header[name] = entry  # type: ignore[assignment]
        data += raw
    for blanks in range(4):  # so that the data begins at every remainder
        text = json.dumps(header).encode() + b" " * blanks
        file = odd / "model.safetensors"
        file.write_bytes(len(text).to_bytes(8, "little") + text + data)
        ids = torch.tensor([[1, 5, 9]])
        expected = load_model(tmp_path / "plain")(input_ids=ids).logits
        assert torch.equal(load_model(odd)(input_ids=ids).logits, expected)


CHANGED = """
import sys
from pathlib import Path
import torch
from asyncgen import load_model

for folder in map(Path, sys.argv[1:]):
    model = load_model(folder)
    ids = torch.arange(3, 90)[None]
    before = model(input_ids=ids).logits
    file = folder / "model.safetensors"
    with file.open("r+b") as stream:
        stream.write(bytes(file.stat().st_size))
    assert torch.equal(model(input_ids=ids).logits, before), "overwritten"
    with file.open("r+b") as stream:
        stream.truncate(0)
    assert torch.equal(model(input_ids=ids).logits, before), "truncated"
print("undisturbed")
"""


@pytest.mark.gate
def test_loaded_model_works_after_its_files_change(tmp_path: Path) -> None:
    """A file that was cut short while it was mapped ended the process (SIGBUS)."""
    sizes = {"hidden_size": 512, "intermediate_size": 96, "max_position_embeddings": 128}
    folders = []
    for stored in (torch.float32, torch.bfloat16):
        folders.append(tmp_path / str(stored))
        save_checkpoint(folders[-1], stored=stored, tie_word_embeddings=True, **sizes)
    done = subprocess.run(
        [sys.executable, "-c", CHANGED, *map(str, folders)], capture_output=True, text=True
    )
    assert done.stdout.strip() == "undisturbed", (done.returncode, done.stderr[-800:])


@pytest.mark.parametrize(
    ("model_type", "broken"),
    [
        ("llama", "model.layers.1.mlp.up_proj.weight"),
        ("llama", "model.layers.0.input_layernorm.weight"),
        ("llama", "lm_head.weight"),
        ("llama", "model.layers.1.self_attn.q_proj.weight"),
        ("llama", "model.layers.0.self_attn.k_proj.weight"),
        ("qwen3", "model.layers.1.self_attn.q_norm.weight"),
        ("qwen3", "model.layers.0.self_attn.k_norm.weight"),
        ("t5", "encoder.block.0.layer.0.SelfAttention.v.weight"),
        ("t5", "encoder.block.0.layer.0.SelfAttention.q.weight"),
        ("t5", "decoder.block.1.layer.0.SelfAttention.k.weight"),
        ("t5", "decoder.block.0.layer.1.EncDecAttention.q.weight"),
        ("t5", "decoder.block.1.layer.1.EncDecAttention.k.weight"),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_no_token_survives(
    tmp_path: Path, model_type: str, broken: str, value: float
) -> None:
    config: dict[str, Any] = {"model_type": model_type}
    if model_type == "t5":
        config |= {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    tensors = save_checkpoint(tmp_path, **config)
    tensors[broken][0] = value
    if value == float("inf"):
        tensors[broken].view(-1)[1] = -value
    save_tensors(tmp_path, tensors)
    with pytest.raises(ModelLoadError, match=rf"model\.safetensors: `{broken}` holds NaN"):
        load_model(tmp_path)


def test_a_row_of_nan_for_a_token_of_no_use_is_let_be(tmp_path: Path) -> None:
    tensors = save_checkpoint(tmp_path)
    tensors["model.embed_tokens.weight"][90] = float("nan")
    save_tensors(tmp_path, tensors)
    assert load_model(tmp_path).config.vocab_size == 96


def test_too_large_model_is_refused_before_tensors_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path)
    monkeypatch.setattr("asyncgen.checkpoints.weight_loading.memory_to_load", lambda device: 50_000)
    monkeypatch.setattr(
        "asyncgen.checkpoints.tensor_reader.TensorReader.join", lambda *_: pytest.fail("read")
    )
    expected = (
        r"needs 8\.\de-05 GB of memory in float32, 5e-05 are free on cpu: use "
        r'`dtype="bfloat16"` \(4\.\de-05 GB\), another `device`, a smaller model'
    )
    with pytest.raises(ModelLoadError, match=expected):
        load_model(tmp_path, device="cpu")


def test_model_that_exactly_fits_memory_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = save_checkpoint(tmp_path)
    need = sum(tensor.nbytes for tensor in tensors.values())
    monkeypatch.setattr("asyncgen.checkpoints.weight_loading.memory_to_load", lambda device: need)
    load_model(tmp_path, device="cpu")
    monkeypatch.setattr(
        "asyncgen.checkpoints.weight_loading.memory_to_load", lambda device: need - 1
    )
    with pytest.raises(ModelLoadError, match="are free on cpu"):
        load_model(tmp_path, device="cpu")
    monkeypatch.setattr("asyncgen.checkpoints.weight_loading.memory_to_load", lambda device: None)
    load_model(tmp_path, device="cpu")


BUNDLED = Path(asyncgen.__file__).parent / "demo"


def bundled_tokenizer(folder: Path, **files: bytes) -> None:
    """The bundled tokenizer's files, some replaced; the last `_` of a name stands for its dot."""
    for file in BUNDLED.iterdir():
        if file.name.startswith(("tokenizer", "special", "chat")):
            (folder / file.name).write_bytes(file.read_bytes())
    for name, content in files.items():
        (folder / ".".join(name.rsplit("_", 1))).write_bytes(content)


def test_a_tokenizer_whose_library_panics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic in Rust is no `Exception`: it ended the thread that loaded."""
    raw = json.loads((BUNDLED / "tokenizer.json").read_text())
    raw["model"]["continuing_subword_prefix"] = "a" * 50
    bundled_tokenizer(tmp_path, tokenizer_json=json.dumps(raw).encode())
    with pytest.raises(ModelLoadError, match="begins with `continuing_subword_prefix`"):
        load_tokenizer(tmp_path)
    monkeypatch.setattr(tokenizer_state, "check_model", lambda *_: None)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is not a tokenizer file"):
        load_tokenizer(tmp_path)


def test_chat_templates_that_cannot_be_used(tmp_path: Path) -> None:
    bundled_tokenizer(tmp_path, chat_template_jinja=b"\xff\xfe")
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja cannot be read"):
        load_tokenizer(tmp_path)
    bundled_tokenizer(tmp_path, chat_template_jinja=b"{% for %}")
    with pytest.raises(ChatTemplateError):
        load_tokenizer(tmp_path).apply_chat_template([{"role": "user", "content": "Hi"}])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 2, 7, 96, 2**31, 2**63, 2**70, 10**9, 10**400])
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["", "a" * 5000, "\0", "..", "/", "gpt2", "t5", "yarn", "gelu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
MUTANT = settings(
    max_examples=40,
    deadline=datetime.timedelta(seconds=30),
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
ROPE = [
    *("factor", "rope_type", "rope_theta", "beta_fast", "beta_slow", "mscale", "attention_factor"),
    *("low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "truncate"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tensors(folder, random_weights(CONFIG, torch.float32))
    return folder


def loads_or_says_why(folder: Path) -> None:
    """Only errors that name what is wrong; a model that loads may be asked for a token."""
    try:
        model = load_model(folder, progress=False)
    except ModelLoadError as error:
        assert len(str(error)) < 3000
        return
    try:
        model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2, pad_token_id=0)
    except (AsyncgenError, ValueError, FloatingPointError):
        pass


@MUTANT
@given(
    changes=st.dictionaries(
        st.sampled_from([*CONFIG, "head_dim", "layer_types", "hidden_act", "quantization_config"]),
        JSON,
        min_size=1,
        max_size=2,
    ),
    rope=st.none() | st.dictionaries(st.sampled_from(ROPE), JSON, max_size=4),
    rope_type=st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn"]),
)
def test_any_config_loads_or_says_why(
    tiny: Path, changes: dict[str, Any], rope: Any, rope_type: str
) -> None:
    raw = {**CONFIG, **changes}
    if rope is not None:
        raw["rope_scaling"] = {"rope_type": rope_type, "factor": 2.0, **rope}
    (tiny / "config.json").write_text(json.dumps(raw))
    loads_or_says_why(tiny)


@MUTANT
@given(data=st.data())
def test_any_header_loads_or_says_why(tiny: Path, data: st.DataObject) -> None:
    (tiny / "config.json").write_text(json.dumps(CONFIG))
    file = tiny / "model.safetensors"
    whole = file.read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:length])
    name = data.draw(st.sampled_from(sorted(header)))
    if data.draw(st.booleans()):
        key = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        header[name] = {**header[name], key: data.draw(JSON)}
    else:
        header[data.draw(st.text(max_size=4))] = data.draw(JSON)
    text = json.dumps(header).encode()
    text = data.draw(st.sampled_from([text, text[:-1], text[:50], b"[]", b"\xff" * 20]))
    size = data.draw(st.sampled_from([len(text), 0, 2**63, len(text) + 1]))
    try:
        file.write_bytes(size.to_bytes(8, "little") + text + whole[length:])
        loads_or_says_why(tiny)
    finally:
        file.write_bytes(whole)


@MUTANT
@given(index=st.fixed_dictionaries({"weight_map": JSON}) | JSON)
def test_any_index_loads_or_says_why(tmp_path: Path, index: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / INDEX).write_text(json.dumps(index))
    loads_or_says_why(tmp_path)


@pytest.mark.gate
@MUTANT
@given(data=st.data())
def test_any_small_file_beside_loads_or_says_why(tmp_path: Path, data: st.DataObject) -> None:
    """Any small file with tokenizer or generation defaults loads, or is refused with the reason."""
    name = data.draw(
        st.sampled_from(["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
    )
    for file in BUNDLED.iterdir():
        if not (tmp_path / file.name).exists() and file.suffix != ".md":
            (tmp_path / file.name).symlink_to(file)
    file = tmp_path / name
    file.unlink(missing_ok=True)
    source = BUNDLED / name
    raw = json.loads(source.read_text()) if source.exists() else {}
    keys = sorted(raw) + ["chat_template", "model_max_length", "added_tokens_decoder", "top_k"]
    raw[data.draw(st.sampled_from(keys))] = data.draw(JSON)
    file.write_text(json.dumps(raw))
    try:
        load_tokenizer(tmp_path)
        load_model(tmp_path, progress=False)
    except ModelLoadError:
        pass
    finally:
        file.unlink()
