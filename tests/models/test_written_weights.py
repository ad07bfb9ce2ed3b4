"""Weights that are written to through ``parameters()``: what computes and what is saved agree."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.llm.llm import LLM
from asyncgen.models.decoder import FOLLOWING, DecoderLM
from asyncgen.reference.load_model import PreTrainedModel, load_model
from tests.cases import for_each
from tests.checkpoints.test_saving import FAMILIES as SAVED
from tests.checkpoints.test_saving import IDS
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.models import byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda weight: weight.mul_(1.2).add_(0.05),
    "data": lambda weight: weight.data.mul_(1.2).add_(0.05),
    "other data": lambda weight: setattr(weight, "data", weight.data * 1.2 + 0.05),
    "detached": lambda weight: weight.detach().mul_(1.2).add_(0.05),
    "rows": lambda weight: weight.data.__setitem__(slice(None), weight.data * 1.2 + 0.05),
}


def logits(model: PreTrainedModel) -> torch.Tensor:
    decoder = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    found: torch.Tensor = model(input_ids=IDS, **decoder).logits
    return found


def saved(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    model.save_pretrained(folder)
    return load_model(folder, device="cpu")


@pytest.mark.gate
@for_each("family", ["llama", "llama-tied", "qwen2", "gpt2", "t5"])
def test_written_parameters_compute(family: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / family, **SAVED[family])
    model = load_model(tmp_path / family, device="cpu")
    for number, (name, weight) in enumerate(model.named_parameters()):
        before = logits(model)
        with torch.no_grad():
            list(WRITES.values())[number % len(WRITES)](weight)
        assert not torch.equal(logits(model), before), name
    expected = logits(saved(model, tmp_path / family / "again"))
    torch.testing.assert_close(logits(model), expected, atol=1e-4, rtol=1e-4)


@for_each("write", WRITES)
def test_a_tied_head_follows_its_table(write: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / write, **SAVED["llama-tied"])
    model = load_model(tmp_path / write, device="cpu")
    logits(model)
    with torch.no_grad():
        WRITES[write](next(model.parameters()))
    again = saved(model, tmp_path / write / "again")
    torch.testing.assert_close(logits(model), logits(again), atol=1e-5, rtol=1e-5)


def test_an_open_engine_follows_and_shares_nothing_old(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 300, "max_position_embeddings": 256}
    save_checkpoint(tmp_path, tie_word_embeddings=True, **sizes)
    model, tokenizer = load_model(tmp_path, device="cpu"), byte_tokenizer()
    prompt = "many words that fill some blocks " * 5
    wanted: dict[str, Any] = {"max_new_tokens": 8}
    with LLM(model, tokenizer=tokenizer) as llm:
        first = llm.generate(prompt, **wanted)
        again = llm.generate(prompt, **wanted)
        assert again.token_ids == first.token_ids
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.5)
        found = llm.generate(prompt, **wanted)
    with LLM(saved(model, tmp_path / "again"), tokenizer=tokenizer) as llm:
        expected: Any = llm.generate(prompt, **wanted)
    assert found.token_ids == expected.token_ids != first.token_ids
    assert (again.usage.cached_tokens, found.usage.cached_tokens) == (160, 0)
    assert found.usage.fingerprint is None


def test_an_open_engine_lives_on_with_weights_swapped_for_those_of_inference_mode(
    tmp_path: Path,
) -> None:
    save_checkpoint(tmp_path, vocab_size=300)
    model, tokenizer = load_model(tmp_path, device="cpu"), byte_tokenizer()
    with LLM(model, tokenizer=tokenizer) as llm:
        first = llm.generate("a", max_new_tokens=4, do_sample=False).token_ids
        for weight in [*model.parameters()][:2]:
            with torch.inference_mode():
                other = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
                torch.utils.swap_tensors(weight, other)  # type: ignore[no-untyped-call]
            assert llm.generate("a", max_new_tokens=4, do_sample=False).token_ids == first
        assert llm.is_healthy
    assert logits(model).shape == (*IDS.shape, 300)


def test_what_is_written_while_it_follows_is_followed_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may write to the table after a tied head was made of it."""
    save_checkpoint(tmp_path, tie_word_embeddings=True, vocab_size=300)
    model, late = load_model(tmp_path, device="cpu"), True
    table, make_head = next(model.parameters()), DecoderLM._tie_head

    def make_and_write(core: DecoderLM) -> None:
        nonlocal late
        make_head(core)
        if late:
            late = False
            table.mul_(1.5)

    with LLM(model, tokenizer=byte_tokenizer()) as llm:
        llm.generate("a", max_new_tokens=2)
        monkeypatch.setattr(DecoderLM, "_tie_head", make_and_write)
        table.mul_(1.2)
        for _ in range(2):
            llm.generate("a", max_new_tokens=2)
        assert not late
        assert torch.equal(model.core.lm_head.dense_weight(), table.detach())


def test_one_thread_at_a_time_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that lay out the same weights would leave parts of the older ones."""
    save_checkpoint(tmp_path, tie_word_embeddings=True)
    model, prepare, waits = load_model(tmp_path, device="cpu"), DecoderLM.prepare, []

    def watched(core: DecoderLM) -> None:
        other = threading.Thread(target=lambda: waits.append(not FOLLOWING.acquire(blocking=False)))
        other.start()
        other.join()
        prepare(core)

    logits(model)
    monkeypatch.setattr(DecoderLM, "prepare", watched)
    next(model.parameters()).mul_(2)
    logits(model)
    assert waits == [True]


def test_weights_of_inference_mode_load(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tie_word_embeddings=True)
    expected = logits(load_model(tmp_path, device="cpu"))
    with torch.inference_mode():
        model = load_model(tmp_path, device="cpu")
    assert torch.equal(logits(model), expected)
    with pytest.raises(RuntimeError, match="outside InferenceMode"):
        next(model.parameters()).mul_(2)
