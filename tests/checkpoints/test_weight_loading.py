"""Test `asyncgen.checkpoints.weight_loading`: values, refusals and peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from asyncgen.checkpoints.checkpoint import open_checkpoint
from asyncgen.checkpoints.weight_loading import check_fit, load_weights, resolve_dtype
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.families.config import ModelConfig
from asyncgen.models.core import make_core
from asyncgen.models.kernels.native_linear import widens
from tests.doubles.checkpoints import CONFIG, random_weights, save_checkpoint, save_tensors

if TYPE_CHECKING:
    from asyncgen.models.decoder import DecoderLM

INDEX = "model.safetensors.index.json"

keeps_16_bits = pytest.mark.skipif(
    not widens(torch.bfloat16, torch.float32), reason="torch's kernels have weights converted"
)


def build(dtype: torch.dtype = torch.float32, **config: Any) -> DecoderLM:
    """A model on the meta device."""
    settings = {**CONFIG, **config}
    with torch.device("meta"):
        return make_core(ModelConfig.from_hf(settings), dtype=dtype)


def load(folder: Path, dtype: torch.dtype = torch.float32, **config: Any) -> DecoderLM:
    core = build(dtype, **config)
    load_weights(core, open_checkpoint(folder))
    return core


def parameter(core: DecoderLM, target: str) -> torch.Tensor:
    """A loaded parameter in the ordinary layout, prepared or not."""
    module, _, name = target.rpartition(".")
    owner = core.get_submodule(module)
    if name == "weight" and hasattr(owner, "dense_weight"):
        return owner.dense_weight()  # type: ignore[operator]
    return core.get_parameter(target)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"attention_bias": True, "mlp_bias": True},
        {"model_type": "qwen3", "head_dim": 16},
        # Large enough for every kernel's own layout.
        {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 1},
    ],
)
def test_loaded_parameters_equal_the_stored_tensors(
    tmp_path: Path, shards: int, config: dict[str, Any]
) -> None:
    tensors = save_checkpoint(tmp_path, shards=shards, **config)
    core = load(tmp_path, **config)
    for rule in core.weight_map():
        expected = torch.cat([tensors[source] for source in rule.sources])
        assert torch.equal(parameter(core, rule.target), expected), rule.target
    assert not any(tensor.is_meta for tensor in core.state_dict().values())


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_are_converted(tmp_path: Path, stored: torch.dtype, dtype: torch.dtype) -> None:
    tensors = save_checkpoint(tmp_path, stored=stored)
    core = load(tmp_path, dtype)
    for rule in core.weight_map():
        expected = torch.cat([tensors[source] for source in rule.sources]).to(dtype)
        assert torch.equal(parameter(core, rule.target).to(dtype), expected)


def test_conversion_in_more_than_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncgen.checkpoints.tensor_reader._CHUNK", 1000)
    tensors = save_checkpoint(tmp_path, stored=torch.bfloat16)
    core = load(tmp_path, torch.float16)
    assert torch.equal(
        core.embed_tokens.weight, tensors["model.embed_tokens.weight"].to(torch.float16)
    )


def test_tied_head(tmp_path: Path) -> None:
    tensors = save_checkpoint(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in tensors
    core = load(tmp_path, tie_word_embeddings=True)
    assert torch.equal(core.lm_head.dense_weight(), tensors["model.embed_tokens.weight"])


def test_single_file_wins_over_an_index(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, shards=2)
    tensors = {name: tensor + 1 for name, tensor in save_checkpoint(tmp_path).items()}
    save_tensors(tmp_path, tensors)
    core = load(tmp_path)
    assert torch.equal(core.embed_tokens.weight, tensors["model.embed_tokens.weight"])


def refused(folder: Path, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(folder)


def test_no_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "there is no folder")


def test_no_weights(tmp_path: Path) -> None:
    refused(tmp_path, "neither model.safetensors nor model.safetensors.index.json")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    refused(tmp_path, rf"pickle weights only \({name}\).*refused: convert them to safetensors")


def test_missing_unexpected_and_misshapen(tmp_path: Path) -> None:
    tensors = save_checkpoint(tmp_path)
    for name in ("model.norm.weight", *[n for n in tensors if "layers.1.mlp" in n]):
        del tensors[name]
    tensors["model.surprise"] = torch.zeros(2)
    tensors["lm_head.weight"] = torch.zeros(96, 31)
    for index in range(5):
        tensors[f"extra.{index}"] = torch.zeros(1)
    save_tensors(tmp_path, tensors)
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert "4 missing: model.layers.1.mlp.gate_proj.weight" in message
    assert "6 unexpected: " in message and " and 2 more" in message
    assert "1 of another shape: lm_head.weight is [96, 31], expected [96, 32]" in message
    assert str(tmp_path) in message and "check that both come from the same model" in message


def test_no_tensor_is_read_before_names_and_shapes_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = save_checkpoint(tmp_path)
    tensors["lm_head.weight"] = torch.zeros(96, 31)
    save_tensors(tmp_path, tensors)
    monkeypatch.setattr(
        "asyncgen.checkpoints.tensor_reader.TensorReader.join", lambda *_: pytest.fail("read")
    )
    refused(tmp_path, "1 of another shape")


def test_ignored_names(tmp_path: Path) -> None:
    tensors = save_checkpoint(tmp_path)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_tensors(tmp_path, tensors)
    load(tmp_path)
    tensors["other"] = torch.zeros(4)
    save_tensors(tmp_path, tensors)
    refused(tmp_path, "1 unexpected: other;")
    load_weights(build(), open_checkpoint(tmp_path), ignored=["^other$"])


def test_quantised_weights(tmp_path: Path) -> None:
    tensors = save_checkpoint(tmp_path)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)
    save_tensors(tmp_path, tensors)
    refused(tmp_path, "1 quantised or of a dtype that is not supported: lm_head.weight is I8")


@pytest.mark.parametrize("size", [0, 4, 8, 100, -1, -1000])
def test_truncated_file(tmp_path: Path, size: int) -> None:
    save_checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    refused(tmp_path, r"model.safetensors is truncated or corrupt \(.*; download it again")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 64,
        b"\x10\x00\x00\x00\x00\x00\x00\x00not json at all!",
        b'\x02\x00\x00\x00\x00\x00\x00\x00{"',
        (50).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}',
    ],
)
def test_corrupt_header(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(tmp_path, "is truncated or corrupt")


def test_pointer_file(tmp_path: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
    (tmp_path / "model.safetensors").write_text(text)
    refused(tmp_path, "git-lfs pointer, not the file itself; run `git lfs pull`")


def test_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ModelLoadError, match="became shorter while it was read"):
        load_weights(build(), checkpoint)


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "/etc/passwd", "a/../../b", "..\\b", "c:\\model"]
)
def test_index_that_points_outside(tmp_path: Path, name: str) -> None:
    write_index(tmp_path, {"lm_head.weight": name})
    refused(tmp_path, "points outside its folder, to .*; do not use this checkpoint")


def test_index_may_be_a_link_as_in_the_hubs_cache(tmp_path: Path) -> None:
    blobs = tmp_path / "models--a--b/blobs"
    snapshot = tmp_path / "models--a--b/snapshots/1234"
    save_checkpoint(blobs, shards=2)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    load(snapshot)


def test_index_that_names_a_missing_file(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    refused(tmp_path, "names model-00002-of-00002.safetensors, which is missing")


def test_index_that_names_a_missing_tensor(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, shards=2)
    index = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    write_index(tmp_path, {**index, "ghost": "model-00001-of-00002.safetensors"})
    refused(tmp_path, "1 of its tensors are not in the files it names: ghost")


@pytest.mark.parametrize("weight_map", [None, [], {"a": 1}])
def test_index_without_a_map(tmp_path: Path, weight_map: object) -> None:
    write_index(tmp_path, weight_map)
    refused(tmp_path, "has no `weight_map` of names to files")


def test_index_decides_between_two_copies(tmp_path: Path) -> None:
    tensors = random_weights(CONFIG, torch.float32)
    save_file(tensors, tmp_path / "a.safetensors")
    other = {"model.norm.weight": tensors["model.norm.weight"] + 1}
    save_file(other, tmp_path / "z.safetensors")
    for chosen, expected in (("a", tensors), ("z", other)):
        weight_map = dict.fromkeys(tensors, "a.safetensors")
        weight_map["model.norm.weight"] = f"{chosen}.safetensors"
        weight_map.setdefault("lm_head.weight", "z.safetensors")
        write_index(tmp_path, weight_map)
        loaded = load(tmp_path).norm.weight
        assert loaded is not None and torch.equal(loaded, expected["model.norm.weight"])


def test_check_fit_says_nothing_when_all_is_well(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    core = build()
    check_fit(core.weight_map(), core.ignored_weights(), open_checkpoint(tmp_path))


def test_dtype_rules(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, stored=torch.float16)
    checkpoint = open_checkpoint(tmp_path)
    for automatic in (None, "auto"):
        assert resolve_dtype(automatic, {"dtype": "bfloat16"}, checkpoint) is torch.bfloat16
        assert resolve_dtype(automatic, {"torch_dtype": "float32"}, checkpoint) is torch.float32
        assert resolve_dtype(automatic, {"dtype": None}, checkpoint) is torch.float16
    assert resolve_dtype(torch.bfloat16, {"dtype": "float32"}, checkpoint) is torch.bfloat16
    assert resolve_dtype("bfloat16", {}, checkpoint) is torch.bfloat16
    assert resolve_dtype("torch.float16", {}, checkpoint) is torch.float16
    for bad in ("int8", torch.int32, "half precision", 16):
        with pytest.raises(InvalidRequestError, match='`dtype` is .*: use "auto" or one of'):
            resolve_dtype(bad, {}, checkpoint)  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match="asks for dtype 'float8'; pass `dtype=`"):
        resolve_dtype(None, {"dtype": "float8"}, checkpoint)


def test_unknown_dtype_asks_for_the_dtype_option(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, dtype=torch.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match="tell a dtype; pass `dtype=`"):
        resolve_dtype(None, {}, open_checkpoint(tmp_path))


PEAK = """
import re, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from asyncgen.reference.load_model import load_model

def status(name):
    text = Path("/proc/self/status").read_text()
    return int(re.search(name + r":\\s+(\\d+) kB", text)[1]) * 1024

# The first load brings in code and buffers that have nothing to do with the checkpoint.
load_model(sys.argv[1], device="cpu")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = status("VmRSS")
model = load_model(sys.argv[2], device="cpu")
print(status("VmHWM") - before)
"""


@pytest.mark.gate
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs the memory figures of Linux"
)
@pytest.mark.parametrize(
    ("dtype", "stored", "shards", "layers"),
    [
        ("float32", torch.float32, 1, 14),
        pytest.param("bfloat16", torch.bfloat16, 3, 42, marks=pytest.mark.gate),
        pytest.param("float32", torch.bfloat16, 1, 42, marks=[keeps_16_bits, pytest.mark.gate]),
    ],
)
def test_peak_memory_is_below_1_05_times_the_checkpoint_and_the_table_of_a_tied_head(
    tmp_path: Path, dtype: str, stored: torch.dtype, shards: int, layers: int
) -> None:
    shape: dict[str, Any] = {"num_attention_heads": 6, "num_key_value_heads": 2, "dtype": dtype}
    shape["stored"] = stored
    warm: dict[str, Any] = {"hidden_size": 768, "intermediate_size": 1024, "num_hidden_layers": 1}
    save_checkpoint(tmp_path / "warm", **shape, **warm)
    big: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1024, "vocab_size": 32_000}
    tensors = save_checkpoint(
        tmp_path / "big",
        shards=shards,
        num_hidden_layers=layers,
        tie_word_embeddings=True,
        **shape,
        **big,
    )
    size = sum(tensor.nbytes for tensor in tensors.values())
    assert size > 120e6
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "warm"), str(tmp_path / "big")],
        capture_output=True,
        text=True,
        check=True,
    )
    size += tensors["model.embed_tokens.weight"].nbytes
    assert int(done.stdout) < 1.05 * size, f"{int(done.stdout) / size:.2f} times what is needed"
