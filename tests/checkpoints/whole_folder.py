"""Write a small folder with every kind of file that is read, and settings of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.tokenizers import save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

MODULES = """[
 {"type": "sentence_transformers.models.Transformer", "path": ""},
 {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
 {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
]"""


def save_whole(folder: Path) -> Path:
    """Write the folder, and return it."""
    save_checkpoint(folder)
    save_tokenizer(folder, "byte_level")
    (folder / "modules.json").write_text(MODULES)
    for name in ("1_Pooling", "2_Dense"):
        (folder / name).mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    dense = '{"in_features": 32, "out_features": 8, "bias": false}'
    (folder / "2_Dense/config.json").write_text(dense)
    weights = {"linear.weight": torch.ones(8, 32, dtype=torch.float32, device="cpu")}
    save_file(weights, folder / "2_Dense/model.safetensors")
    return folder
