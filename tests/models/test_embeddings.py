"""The embeddings of a model in use: whatever is done to them, what computes follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from asyncgen.errors import InvalidRequestError
from asyncgen.llm.llm import AsyncLLM
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from asyncgen.reference.load_model import PreTrainedModel, load_model
from tests.checkpoints.test_saving import FAMILIES, IDS, theirs
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.models import byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("transformers")

TIED = {"tie_word_embeddings": True}


def load(folder: Path, **config: Any) -> PreTrainedModel:
    save_checkpoint(folder, **config)
    return load_model(folder, device="cpu")


@pytest.fixture(params=["llama", "llama-tied", "gpt2", "t5"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, Any]:
    """Ours and the reference's model from one folder."""
    return load(tmp_path, **FAMILIES[request.param]), theirs(tmp_path)


def logits(model: Any) -> torch.Tensor:
    """Compute a model's logits of each token."""
    decoder = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, **decoder).logits
    return found


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


def test_numbers_of_parameters(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, reference = pair
    for exclude in (False, True):
        expected = reference.num_parameters(exclude_embeddings=exclude)
        assert ours.num_parameters(exclude_embeddings=exclude) == expected
    assert ours.num_parameters(only_trainable=True) == 0  # these models do not train


def test_rows_and_heads_can_be_looked_at(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, reference = pair
    before = logits(ours)
    for mine, other in (
        (ours.get_input_embeddings(), reference.get_input_embeddings()),
        (ours.get_output_embeddings(), reference.get_output_embeddings()),
    ):
        assert mine.weight.shape == other.weight.shape
        assert torch.equal(mine.weight, other.weight)
    table, other = ours.get_input_embeddings(), reference.get_input_embeddings()
    assert (table.num_embeddings, table.embedding_dim) == (96, 32)
    assert torch.equal(table(IDS), other(IDS))
    head = ours.get_output_embeddings()
    assert (head.in_features, head.out_features, head.bias) == (32, 96, None)
    hidden = torch.randn(2, 3, 32)
    close(head(hidden), reference.get_output_embeddings()(hidden).detach())
    close(logits(ours), before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_changes_to_embedding_weights_take_effect(
    pair: tuple[PreTrainedModel, Any], dtype: str
) -> None:
    ours, reference = pair
    if dtype == "bfloat16":
        ours.bfloat16()
    before = logits(ours)
    with torch.no_grad():
        for model in (ours, reference):
            model.get_input_embeddings().weight.data[5:9] = 0.25
            model.get_input_embeddings().weight[17] += 0.5
            model.get_output_embeddings().weight[40:50] *= -2
    assert not torch.equal(logits(ours), before)
    wide = {"float32": 2e-4, "bfloat16": 0.2}[dtype]
    torch.testing.assert_close(logits(ours).float(), logits(reference), atol=wide, rtol=wide)


def test_another_table(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, reference = pair
    before, table = logits(ours), nn.Embedding(96, 32)
    nn.init.normal_(table.weight, std=0.3)
    for model in (ours, reference):
        model.set_input_embeddings(table)
        model.tie_weights()
    assert not torch.equal(logits(ours), before)
    close(logits(ours), logits(reference))
    with torch.no_grad():
        table.weight[3] = 0.5  # it is shared
    close(logits(ours), logits(reference))


def test_other_sizes(pair: tuple[PreTrainedModel, Any]) -> None:
    ours, reference = pair
    config, before = ours.config, logits(ours)
    sizes = [(100, None, 100), (None, 64, 128), (97, 8, 104), (None, None, 104), (92, None, 92)]
    for size, multiple, expected in sizes:
        found = ours.resize_token_embeddings(size, pad_to_multiple_of=multiple)
        other = reference.resize_token_embeddings(size, pad_to_multiple_of=multiple)
        assert found.weight.shape == other.weight.shape == (expected, 32)
        assert ours.config is config
        assert config.vocab_size == config.to_dict()["vocab_size"] == expected
        assert reference.config.vocab_size == expected
        # The reference draws new rows closely around the mean, which ours are.
        torch.testing.assert_close(found.weight, other.weight, atol=2e-4, rtol=0)
        torch.testing.assert_close(logits(ours), logits(reference), atol=2e-3, rtol=2e-3)
        kept = min(96, expected)
        close(logits(ours)[..., :kept], before[..., :kept])
    ours.resize_token_embeddings(40)
    with pytest.raises(InvalidRequestError, match="ids go from 0 to 39"):
        logits(ours)


@pytest.mark.parametrize("tied", [True, False])
def test_drawn_rows(tied: bool, tmp_path: Path) -> None:
    model = load(tmp_path, tie_word_embeddings=tied, initializer_range=3.0)
    torch.manual_seed(1)
    rows = model.resize_token_embeddings(1096, mean_resizing=False).weight[96:]
    assert 2.9 < float(rows.std()) < 3.1
    torch.manual_seed(1)
    assert torch.equal(rows, torch.empty(1000, 32).normal_(std=3.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"new_num_tokens": 0}, "`new_num_tokens` is 0: must be a whole number of at least 1"),
        ({"new_num_tokens": "100"}, "`new_num_tokens` is '100'"),
        ({"pad_to_multiple_of": -8}, "`pad_to_multiple_of` is -8"),
    ],
)
def test_sizes_that_are_none(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        load(tmp_path).resize_token_embeddings(**options)


class Soft(nn.Embedding):
    """Does more than looking rows up."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Embedding(96, 16), r"its weight must be \[V, 32\]"),
        (nn.Linear(32, 96), "give an `nn.Embedding`"),
        (nn.Embedding(96, 32, max_norm=1.0), "without `max_norm`"),
        (Soft(96, 32), "rows are looked up as they are"),
        (nn.Embedding(97, 32), "`value` is Embedding of 97 rows: the head has 96 rows"),
        (torch.zeros(96, 32), "`value` is 'Tensor'"),
        (None, "`value` is 'NoneType'"),
    ],
)
def test_tables_that_are_none(module: Any, message: str, tmp_path: Path) -> None:
    model = load(tmp_path)
    expected = logits(model)
    with pytest.raises(InvalidRequestError, match=message):
        model.set_input_embeddings(module)
    assert torch.equal(logits(model), expected)


def test_a_longer_table_of_a_tied_head(tmp_path: Path) -> None:
    model = load(tmp_path, **TIED)
    table = nn.Embedding(120, 32)
    model.set_input_embeddings(table)
    assert model.config.vocab_size == 120 and logits(model).shape[-1] == 120
    model.set_input_embeddings(model.get_input_embeddings())
    assert torch.equal(model.get_output_embeddings().weight, table.weight)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "t5"])
def test_conversions_are_those_of_loading(family: str, tmp_path: Path) -> None:
    model = load(tmp_path, **FAMILIES[family])
    kernel = model.core.lm_head.kernel
    assert model.to("cpu").to(torch.float32).eval().to(device="cpu") is model
    assert model.core.lm_head.kernel is kernel  # nothing was done
    for name, dtype in {"bfloat16": torch.bfloat16, "half": torch.float16}.items():
        expected = load_model(tmp_path, device="cpu", dtype=dtype)
        found = load_model(tmp_path, device="cpu").to(dtype)
        assert getattr(load_model(tmp_path, device="cpu"), name)().dtype is dtype
        assert found.dtype is dtype and found.device.type == "cpu"
        assert torch.equal(logits(found), logits(expected))
        resized = found.resize_token_embeddings(100)
        assert resized.weight.dtype is dtype and logits(found).dtype is dtype
    with pytest.raises(InvalidRequestError, match="`dtype` is torch.complex64"):
        model.to(torch.complex64)


CHANGES: dict[str, Callable[[Any], object]] = {
    "resize": lambda model: model.resize_token_embeddings(100),
    "set": lambda model: model.set_input_embeddings(nn.Embedding(96, 32)),
    "convert": lambda model: model.bfloat16(),
    "write": lambda model: model.get_output_embeddings().weight,
}


@pytest.mark.anyio
async def test_an_engine_keeps_its_weights(tmp_path: Path) -> None:
    model = load(tmp_path, **TIED, vocab_size=300)
    tokenizer = byte_tokenizer()
    async with AsyncLLM(model, tokenizer=tokenizer) as llm:
        expected = (await llm.generate("abc", max_new_tokens=4)).token_ids
        for change in CHANGES.values():
            with pytest.raises(InvalidRequestError, match="close the engine first"):
                change(model)
        assert model.to("cpu") is model
        assert model.resize_token_embeddings(300).num_embeddings == 300
        assert (await llm.generate("abc", max_new_tokens=4)).token_ids == expected
    model.resize_token_embeddings(400)
    model.get_input_embeddings().weight.data[:] = torch.randn(400, 32)
    async with AsyncLLM(model, tokenizer=tokenizer) as llm:
        found = (await llm.generate("abc", max_new_tokens=4)).token_ids
    ids: Any = model.generate(torch.tensor([tokenizer.encode("abc")]), max_new_tokens=4)
    assert list(found) == ids[0, 3:].tolist() != list(expected)


@pytest.mark.parametrize("change", CHANGES)
def test_a_manager_keeps_its_weights(change: str, tmp_path: Path) -> None:
    model = load(tmp_path, **TIED)
    manager = ContinuousBatchingManager(model)
    manager.start()
    with pytest.raises(InvalidRequestError, match="close the engine first"):
        CHANGES[change](model)
    manager.stop(block=True)
    CHANGES[change](model)
    outputs = model.generate_batch([[3, 4, 5]], max_new_tokens=4, progress_bar=False)
    ids: Any = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=4)
    assert outputs["req_0"].generated_tokens == ids[0, 3:].tolist()
