"""The exported folder loads here and in transformers, with equal scores."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING

import pytest
import torch

from asyncgen_apps.demo_model.export import export, load
from asyncgen_apps.demo_model.network import Network, NetworkConfig
from asyncgen_apps.demo_model.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = NetworkConfig(
    vocab_size=600, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, context=64
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    export(Network(CONFIG), train_tokenizer(1, 600, 40), tmp_path)
    return tmp_path


def test_it_comes_back_unchanged(folder: Path) -> None:
    network, tokenizer = load(folder)
    assert network.config == CONFIG
    assert tokenizer.get_vocab_size() == CONFIG.vocab_size
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"


def test_transformers_scores_the_same(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_dict=False
    )])  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(load(folder)[0](ids), model(ids).logits, atol=1e-4, rtol=1e-4)
    assert tokenizer.eos_token_id == 2
    assert model.generation_config.eos_token_id == 2
