"""Make models with random weights on the device, for sizes that no benchmark stores.

Either library makes the network that the description of a checkpoint gives; both have the same
number of weights, with other values.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.shape import ModelShape

if TYPE_CHECKING:
    import torch

    from asyncgen import PreTrainedModel


SEED_SHAPE = ModelShape(hidden=32, layers=1, heads=4, kv_heads=2, ffn=32, vocab=512)
SPREAD = 0.02
MEGABYTE = 1 << 20
COPIES = 8


def asyncgen_model(folder: str, dtype: str, device: str) -> PreTrainedModel:
    """Make our model of the network that ``folder`` describes.

    Args:
        folder: Folder with a ``config.json``; weights are not needed.
        dtype: Name of the type to compute in.
        device: Device of the weights.
    """
    import json

    import torch

    from asyncgen import ModelConfig, load_model

    with tempfile.TemporaryDirectory(prefix="asyncgen-bench-") as small:
        # A loaded model gives the classes to build, which have no public names.
        write_checkpoint(Path(small), SEED_SHAPE, "float32")
        pattern = load_model(small, device="cpu", progress=False)
        config = ModelConfig.from_hf(json.loads((Path(folder) / "config.json").read_text()))
        kind = getattr(torch, dtype)
        make_core: Any = type(pattern.core)
        with torch.device(device):
            core = make_core(config, dtype=kind)
        with torch.no_grad():
            _fill(core)
        core.prepare()
        return type(pattern)(core, pattern.generation_config, Path(folder).name)


def transformers_model(folder: str, dtype: str, device: str) -> Any:
    """Make transformers' model of the network that ``folder`` describes; arguments as above."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    with torch.no_grad():
        _fill(model)
    return model.to(device).eval()


def _fill(module: torch.nn.Module) -> None:
    """Draw matrices of a size that keeps activations finite; norms become 1, biases 0."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, SPREAD)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def bytes_per_token(model: PreTrainedModel) -> int:
    """Return the bytes of weights that one token of one stream must read.

    That is every matrix but the embedding table, of which a token reads a row; a head that is the
    table counts. Norms are too small to matter.
    """
    config = model.config
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    attention = config.hidden_size * config.head_dim * (heads + config.num_attention_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    head = config.vocab_size * config.hidden_size
    return (config.num_hidden_layers * layer + head) * model.dtype.itemsize


def bandwidth(device: str, megabytes: int = 2048) -> float:
    """Measure how many bytes a second the device's memory moves, reads and writes together.

    Args:
        device: The device.
        megabytes: Size of the block that is copied; far beyond any cache.
    """
    import torch

    source = torch.ones(megabytes * MEGABYTE // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        if source.is_cuda:
            torch.cuda.synchronize()

    copy()
    seconds = []
    for _ in range(COPIES):
        start = perf_counter()
        copy()
        seconds.append(perf_counter() - start)
    return 2.0 * source.numel() * 4 / min(seconds)
