"""Models whose tokens see later ones, and what pooled vectors go through: as in EmbeddingGemma."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import asyncgen
from asyncgen import LLM, AsyncLLM
from asyncgen.checkpoints.embedding_settings import read_dense, read_embedding_settings
from asyncgen.errors import InvalidRequestError, ModelLoadError
from tests.doubles.models import byte_tokenizer
from tests.families.arch.families import make

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = (20, 1, 2, 6, 7, 8, 14, 33, 50, 63, 64, 33)
TEXTS = [[(7 * row + 3 * at) % 90 + 3 for at in range(size)] for row, size in enumerate(LENGTHS)]
SWITCHES: list[dict[str, Any]] = [
    {},
    {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"] * 3},
    {"sliding_window": 40, "num_key_value_heads": 1, "attention_bias": True},
    {"layer_types": ["full_attention"] * 6, "query_pre_attn_scalar": 4},
]


def save_both_ways(folder: Path, **overrides: Any) -> Any:
    """Save such a model as the makers do, without a head; return the reference's."""
    reference = make("gemma3_text", folder, use_bidirectional_attention=True, **overrides)
    file = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    window = overrides.get("sliding_window", 6)
    reference.base_model.save_pretrained(folder)
    # The reference halves the window when it reads a file, and writes an odd one as one less.
    assert file["sliding_window"] == window // 2 * 2
    return reference.base_model


def write(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_modules(folder: Path, *kinds: str) -> None:
    """Say that a text goes through such modules."""
    modules = [
        {"path": f"{place}_{kind}" if place else "", "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds)
    ]
    write(folder, "modules.json", modules)


def write_dense(folder: Path, rows: int, columns: int, *, bias: bool, activation: str) -> nn.Linear:
    """Save a dense layer; return it."""
    layer = nn.Linear(columns, rows, bias=bias)
    said = {"in_features": columns, "out_features": rows, "bias": bias}
    kind = f"torch.nn.modules.{activation}"
    write(folder, "config.json", {**said, "activation_function": kind})
    weights = {f"linear.{name}": each.detach() for name, each in layer.named_parameters()}
    save_file(weights, folder / "model.safetensors")
    return layer


def means(reference: Any, texts: list[list[int]]) -> list[torch.Tensor]:
    """The means of the reference's hidden states, each text by itself."""
    with torch.no_grad():
        return [reference(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in texts]


@pytest.mark.parametrize("switches", SWITCHES, ids=range(len(SWITCHES)))
def test_texts_are_seen_in_both_directions(switches: dict[str, Any], tmp_path: Path) -> None:
    reference = save_both_ways(tmp_path, **switches)
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    ids = torch.tensor([TEXTS[7], TEXTS[11]])
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    for given in ({}, {"attention_mask": mask}):
        states = ours(ids, output_hidden_states=True, **given).hidden_states[-1]
        with torch.no_grad():
            expected = reference(ids, **given).last_hidden_state
        seen = given.get("attention_mask", torch.ones_like(ids)).bool()
        torch.testing.assert_close(states[seen], expected[seen], atol=1e-5, rtol=1e-4)
    # Longer texts than a step has tokens for are computed at once.
    with LLM(ours, tokenizer=byte_tokenizer(), page_size=7, prefill_chunk_size=40) as llm:
        for _ in range(2):
            found = llm.embed(TEXTS, pooling="mean", normalize=False)
            for one, expected in zip(found, means(reference, TEXTS), strict=True):
                torch.testing.assert_close(one.vector, expected, atol=1e-5, rtol=1e-4)
        last = llm.embed(TEXTS[9], pooling="last", normalize=False).vector
        assert llm.embed(TEXTS[9], pooling="last", normalize=False).vector.equal(last)
        with torch.no_grad():
            expected = reference(torch.tensor([TEXTS[9]])).last_hidden_state[0, -1]
        torch.testing.assert_close(last, expected, atol=1e-5, rtol=1e-4)
        assert llm.metrics().prefix_cache_hits == 0
    ours.save_pretrained(tmp_path / "again")
    again = asyncgen.load_model(tmp_path / "again", dtype="float32")
    assert torch.equal(again(ids).logits, ours(ids).logits)


@pytest.mark.anyio
async def test_clients_share_a_small_memory(tmp_path: Path) -> None:
    reference = save_both_ways(tmp_path)
    expected = means(reference, TEXTS)
    page = 7 * 2 * 6 * 2 * 12 * 4
    options: dict[str, Any] = {"page_size": 7, "prefill_chunk_size": 16, "dtype": "float32"}
    async with AsyncLLM(
        tmp_path, tokenizer=byte_tokenizer(), kv_cache_memory=12 * page, **options
    ) as llm:

        async def ask(client: str) -> None:
            found = await llm.embed(TEXTS, pooling="mean", normalize=False, client=client)
            for one, vector in zip(found, expected, strict=True):
                torch.testing.assert_close(one.vector, vector, atol=1e-5, rtol=1e-4)

        async with anyio.create_task_group() as group:
            for client in ("a", "b", "c"):
                group.start_soon(ask, client)


def test_embedding_models_refuse_to_generate(tmp_path: Path) -> None:
    save_both_ways(tmp_path)
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    with pytest.raises(InvalidRequestError, match="use_bidirectional_attention"):
        ours.generate(torch.tensor([TEXTS[0]]), max_new_tokens=2)
    with LLM(ours, tokenizer=byte_tokenizer()) as llm:
        for beams in (None, 2):
            with pytest.raises(InvalidRequestError, match="`embed` turns texts into vectors"):
                llm.generate(TEXTS[0], max_new_tokens=2, num_beams=beams)


def test_a_vector_goes_through_dense_layers(tmp_path: Path) -> None:
    reference = save_both_ways(tmp_path)
    write_modules(tmp_path, "Transformer", "Pooling", "Dense", "Dense", "Normalize")
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    first = write_dense(tmp_path / "2_Dense", 40, 32, bias=False, activation="linear.Identity")
    second = write_dense(tmp_path / "3_Dense", 24, 40, bias=True, activation="activation.Tanh")
    with torch.no_grad():
        expected = [second(first(mean)).tanh() for mean in means(reference, TEXTS)]
    with LLM(tmp_path, tokenizer=byte_tokenizer(), dtype="float32") as llm:
        for one, vector in zip(llm.embed(TEXTS), expected, strict=True):
            torch.testing.assert_close(one.vector, vector / vector.norm(), atol=1e-5, rtol=1e-4)
        with pytest.raises(InvalidRequestError, match="they have 24 components"):
            llm.embed(TEXTS, dimensions=32)


def test_dense_layers_with_wrong_widths_are_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", "Dense")
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode": "mean"})
    write_dense(tmp_path / "2_Dense", 5, 6, bias=True, activation="activation.GELU")
    (layer,) = read_embedding_settings(tmp_path, {}, 6).layers
    assert layer.width == 5 and layer(torch.zeros(6)).shape == (5,)
    again = pickle.loads(pickle.dumps(layer))
    torch.testing.assert_close(again(torch.ones(6)), layer(torch.ones(6)))
    with pytest.raises(ModelLoadError, match="6 to 5 features are wanted, of 7"):
        read_embedding_settings(tmp_path, {}, 7)
    write_dense(tmp_path / "2_Dense", 5, 6, bias=True, activation="activation.Mish")
    with pytest.raises(ModelLoadError, match="Mish"):
        read_dense(tmp_path / "2_Dense", None)
    write_modules(tmp_path, "Transformer", "Pooling", "Normalize", "Dense")
    assert "'Dense'" in (read_embedding_settings(tmp_path, {}).unsupported or "")


def test_more_modules_than_any_model_has(tmp_path: Path) -> None:
    """Each would be read anew, weights included."""
    write_modules(tmp_path, "Transformer", "Pooling", *["Dense"] * 40)
    with pytest.raises(ModelLoadError, match=r"modules.json lists 42 modules; at most 32 are read"):
        read_embedding_settings(tmp_path, {}, 32)


def test_a_dense_layer_of_gigabytes(tmp_path: Path) -> None:
    """Its file is sparse, and costs nothing to make."""
    rows = 10**8
    said = {"in_features": 32, "out_features": rows, "bias": False}
    write(tmp_path, "config.json", said)
    place = {"dtype": "F32", "shape": [rows, 32], "data_offsets": [0, 128 * rows]}
    header = json.dumps({"linear.weight": place}).ljust(128).encode()
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.write((128).to_bytes(8, "little") + header)
        stream.truncate(136 + 128 * rows)
    with pytest.raises(ModelLoadError, match="has 12800000000 bytes of weights; at most"):
        read_dense(tmp_path, 32)
