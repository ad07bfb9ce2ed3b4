"""Measure the peak memory of loading in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from asyncgen.models.kernels.native_packed import supports_packed
from tests.checkpoints.gguf.making import write_gguf
from tests.checkpoints.gguf.test_block_formats import random_blocks

pytestmark = [
    pytest.mark.skipif(
        not supports_packed(torch.bfloat16), reason="needs our kernels, for AVX-512 and VNNI"
    ),
    pytest.mark.skipif(
        not Path("/proc/self/clear_refs").exists(), reason="needs Linux, which tells a peak"
    ),
]

MEASURE = """
import json, sys
import asyncgen
from asyncgen.models.kernels.native_packed import PackedLinearKernel

def tell(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))

tiny, model, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
asyncgen.load_model(tiny, dtype="bfloat16", progress=False, **options)  # what is made but once
with open("/proc/self/clear_refs", "w") as peaks:
    peaks.write("5")
before = tell("VmRSS")
model = asyncgen.load_model(model, dtype="bfloat16", progress=False, **options)
peak = tell("VmHWM") - before
sizes = {one.data_ptr(): one.nbytes for one in model.parameters()}
for module in model.modules():
    kernel = getattr(module, "kernel", None)
    if isinstance(kernel, PackedLinearKernel):  # the head's is that of the embedding
        sizes |= {block.panels.data_ptr(): block.panels.nbytes for block in kernel._runs}
print(json.dumps([peak, sum(sizes.values())]))
"""

SIZES = {
    "tiny": {"layers": 1, "hidden": 256, "width": 512, "vocabulary": 256},
    "plain": {"layers": 6, "hidden": 1024, "width": 4096, "vocabulary": 16_000},
    "large": {"layers": 16, "hidden": 2048, "width": 8192, "vocabulary": 64_000},
}
HEAD = 64
REST = 24 << 20
"""Bytes that are not weights: what allocators keep, and tables of positions."""


def matrices(layers: int, hidden: int, width: int, vocabulary: int) -> dict[str, tuple[int, int]]:
    """Names, as GGUF has them, and shapes of a Llama's matrices."""
    found = {"token_embd": (vocabulary, hidden)}
    for number in range(layers):
        found |= {
            f"blk.{number}.{name}": shape
            for name, shape in {
                "attn_q": (hidden, hidden),
                "attn_k": (hidden // 2, hidden),
                "attn_v": (hidden // 2, hidden),
                "attn_output": (hidden, hidden),
                "ffn_gate": (width, hidden),
                "ffn_up": (width, hidden),
                "ffn_down": (hidden, width),
            }.items()
        }
    return found


def as_gguf(folder: Path, size: str, kind: str) -> Path:
    """A file of random blocks of a type."""
    shape = SIZES[size]
    number = gguf.GGMLQuantizationType[kind]
    numbers, num_bytes = gguf.GGML_QUANT_SIZES[number]
    blocks = random_blocks(kind, 2048)
    tensors: dict[str, Any] = {"output_norm.weight": np.ones(shape["hidden"], np.float32)}
    for name, (rows, columns) in matrices(**shape).items():
        count = rows * columns // numbers
        whole = np.resize(blocks, (count, num_bytes))
        tensors[f"{name}.weight"] = whole.reshape(rows, columns // numbers * num_bytes)
    kinds = dict.fromkeys((name for name in tensors if "norm" not in name), number)
    for layer in range(shape["layers"]):
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{norm}.weight"] = np.ones(shape["hidden"], np.float32)
    metadata = {
        "general.architecture": "llama",
        "llama.context_length": 512,
        "llama.embedding_length": shape["hidden"],
        "llama.block_count": shape["layers"],
        "llama.feed_forward_length": shape["width"],
        "llama.attention.head_count": shape["hidden"] // HEAD,
        "llama.attention.head_count_kv": shape["hidden"] // HEAD // 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
    }
    return write_gguf(folder / f"{size}-{kind}.gguf", metadata, tensors, kinds)


NAMES = {
    "token_embd": "model.embed_tokens",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def as_folder(folder: Path, size: str) -> Path:
    """A checkpoint of random weights in bfloat16."""
    shape = SIZES[size]
    tensors = {"model.norm.weight": torch.ones(shape["hidden"], dtype=torch.bfloat16)}
    for name, (rows, columns) in matrices(**shape).items():
        few = torch.randn(32, columns).bfloat16() / 50
        *block, last = name.split(".")
        place = f"model.layers.{block[1]}.{NAMES[last]}" if block else NAMES[last]
        tensors[f"{place}.weight"] = few.repeat(-(-rows // 32), 1)[:rows]
    for layer in range(shape["layers"]):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            ones = torch.ones(shape["hidden"], dtype=torch.bfloat16)
            tensors[f"model.layers.{layer}.{norm}.weight"] = ones
    config = {
        "model_type": "llama",
        "hidden_size": shape["hidden"],
        "intermediate_size": shape["width"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["hidden"] // HEAD,
        "num_key_value_heads": shape["hidden"] // HEAD // 2,
        "vocab_size": shape["vocabulary"],
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    (folder / size).mkdir()
    (folder / size / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / size / "model.safetensors")
    return folder / size


def measured(tiny: Path, model: Path, **options: str) -> tuple[int, int]:
    """The largest growth of a process that loads a model, and what the model takes."""
    command = [sys.executable, "-c", MEASURE, str(tiny), str(model), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak, size = json.loads(done.stdout)
    return peak, size


LARGE = (pytest.mark.soak, pytest.mark.timeout(300))


@pytest.mark.gate
@pytest.mark.parametrize(
    ("size", "kind"),
    [
        ("plain", "Q4_K"),
        *(pytest.param("large", kind, marks=LARGE) for kind in ("Q4_K", "Q6_K", "Q2_K", "Q8_0")),
    ],
)
def test_a_file_takes_its_model_and_a_tensor(size: str, kind: str, tmp_path: Path) -> None:
    peak, packed = measured(as_gguf(tmp_path, "tiny", kind), as_gguf(tmp_path, size, kind))
    number = gguf.GGMLQuantizationType[kind]
    numbers, num_bytes = gguf.GGML_QUANT_SIZES[number]
    largest = max(rows * columns for rows, columns in matrices(**SIZES[size]).values())
    assert packed > 25e6
    assert peak <= packed + largest // numbers * num_bytes + REST, (peak / 1e6, packed / 1e6)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("size", "packing"),
    [("plain", "int4"), *(pytest.param("large", one, marks=LARGE) for one in ("int4", "int8"))],
)
def test_packing_takes_the_model_and_a_layer(size: str, packing: str, tmp_path: Path) -> None:
    tiny, model = as_folder(tmp_path, "tiny"), as_folder(tmp_path, size)
    peak, packed = measured(tiny, model, quantize=packing)
    shapes = matrices(**SIZES[size])
    layer = sum(rows * columns * 2 for name, (rows, columns) in shapes.items() if ".0." in name)
    assert packed > 25e6
    assert peak <= packed + layer + REST // 2, (peak / 1e6, packed / 1e6, layer / 1e6)
