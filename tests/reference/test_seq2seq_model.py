"""The face of a model with two stacks, and its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError, UnsupportedModelError
from asyncgen.families.config import ModelConfig
from asyncgen.llm.llm import AsyncLLM
from asyncgen.models.core import make_core
from asyncgen.reference.seq2seq_model import Seq2SeqModel
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.engine import no_thread_left
from tests.doubles.models import EOS, VOCABULARY, byte_tokenizer
from tests.parity.test_seq2seq import inputs, models

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["no_thread_left"]

pytest.importorskip("transformers")

PROMPT = "translate this"


@pytest.fixture
def model() -> Seq2SeqModel:
    """A random model over bytes, sure of itself."""
    config = ModelConfig.from_hf(
        {
            "model_type": "t5",
            "vocab_size": VOCABULARY,
            "d_model": 16,
            "d_kv": 4,
            "d_ff": 24,
            "num_layers": 2,
            "num_heads": 2,
            "eos_token_id": EOS,
            "pad_token_id": EOS + 1,
            "decoder_start_token_id": EOS + 1,
        }
    )
    core = make_core(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    for parameter in core.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    core.prepare()
    return Seq2SeqModel(core)


def generated(model: Seq2SeqModel, **options: Any) -> list[int]:
    """Generate with the synchronous method."""
    ids: Any = model.generate(torch.tensor([list(PROMPT.encode())]), **options)
    return ids[0, 1:].tolist()


@pytest.mark.anyio
@pytest.mark.parametrize("chunk", [1, 256])
async def test_a_stream_is_what_generate_gives(model: Seq2SeqModel, chunk: int) -> None:
    expected = generated(model, max_new_tokens=40)
    async with AsyncLLM(model, tokenizer=byte_tokenizer(), prefill_chunk_size=chunk) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=40)
        text = "".join([piece async for piece in stream])
        assert list(stream.result.token_ids) == expected
        assert text == byte_tokenizer().decode(expected, skip_special_tokens=True)
        assert stream.result.usage.prompt_tokens == len(PROMPT)
        completion = await llm.generate(PROMPT, max_new_tokens=40)
        assert list(completion.token_ids) == expected


@pytest.mark.anyio
async def test_samples_share_one_encoding(
    model: Seq2SeqModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    encode = model.core.encode

    def counted(embeddings: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(embeddings.shape[0])
        return encode(embeddings, *args, **kwargs)

    monkeypatch.setattr(model.core, "encode", counted)
    async with AsyncLLM(model, tokenizer=byte_tokenizer()) as llm:
        completion = await llm.generate(PROMPT, max_new_tokens=5, n=3, temperature=2.0, seed=3)
        assert len(completion.samples) == 3
        again = await llm.generate(PROMPT, max_new_tokens=5, n=3, temperature=2.0, seed=3)
        assert [sample.token_ids for sample in again.samples] == [
            sample.token_ids for sample in completion.samples
        ]
    assert calls == [1, 1]


@pytest.mark.anyio
async def test_a_stream_that_is_left_is_a_prefix(model: Seq2SeqModel) -> None:
    whole = generated(model, max_new_tokens=30)
    async with AsyncLLM(model, tokenizer=byte_tokenizer()) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=30)
        async for _ in stream.events():
            break
        await stream.aclose()
        part = list(stream.result.token_ids)
    assert part == whole[: len(part)]


@pytest.mark.anyio
async def test_a_decoder_without_a_first_token_is_refused(model: Seq2SeqModel) -> None:
    model.generation_config.decoder_start_token_id = None
    async with AsyncLLM(model, tokenizer=byte_tokenizer()) as llm:
        with pytest.raises(InvalidRequestError) as caught:
            await llm.generate(PROMPT, max_new_tokens=5)
        assert caught.value.parameter == "decoder_start_token_id"
        completion = await llm.generate(PROMPT, max_new_tokens=5, decoder_start_token_id=EOS + 1)
        assert completion.token_ids


def test_each_auto_name_loads_its_kind(tmp_path: Path) -> None:
    models(0, tmp_path / "t5")
    save_checkpoint(tmp_path / "llama")
    loaded = asyncgen.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "t5")
    assert isinstance(loaded, Seq2SeqModel)
    with pytest.raises(UnsupportedModelError, match="AutoModelForSeq2SeqLM"):
        asyncgen.AutoModelForCausalLM.from_pretrained(tmp_path / "t5")
    with pytest.raises(UnsupportedModelError, match="AutoModelForCausalLM"):
        asyncgen.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "llama")


def test_the_encoder_alone_equals_the_reference(tmp_path: Path) -> None:
    theirs, ours = models(1, tmp_path)
    options = dict(inputs(1), output_hidden_states=True, output_attentions=True)
    with torch.no_grad():
        expected = theirs.get_encoder()(**options)
    found = ours.get_encoder()(**options)
    assert list(found.keys()) == [name for name in expected if name != "cross_attentions"]
    torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
    assert len(found.hidden_states) == len(expected.hidden_states)
    as_tuple = ours.get_encoder()(**inputs(1), return_dict=False)
    torch.testing.assert_close(as_tuple[0], found[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"input_ids": torch.tensor([[1]])}, "decoder_input_ids"),
        ({"decoder_input_ids": torch.tensor([[1]])}, "input_ids"),
        ({"input_ids": torch.tensor([[1]]), "decoder_input_ids": torch.tensor([[999]])}, "999"),
        (
            {
                "input_ids": torch.tensor([[1]]),
                "decoder_input_ids": torch.tensor([[1]]),
                "decoder_attention_mask": torch.ones(1, 2),
            },
            "decoder_attention_mask",
        ),
        ({"input_ids": torch.tensor([[1]]), "past_key_values": 3}, "decoder_input_ids"),
        (
            {
                "input_ids": torch.tensor([[1]]),
                "decoder_input_ids": torch.tensor([[1]]),
                "past_key_values": 3,
            },
            "past_key_values",
        ),
    ],
)
def test_bad_arguments_are_named(
    model: Seq2SeqModel, arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        model(**arguments)


def test_a_batch_of_prompts_for_the_encoder(model: Seq2SeqModel) -> None:
    prompts = [[5, 6, 7], [8, 9]]
    outputs = model.generate_batch(prompts, max_new_tokens=6, do_sample=False)
    for prompt, output in zip(prompts, outputs.values(), strict=True):
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)
        assert isinstance(ids, torch.Tensor)
        assert output.generated_tokens == ids[0, 1:].tolist()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "case",
    [
        {"do_sample": True, "frequency_penalty": 0.7, "stop": ["ab", "e"]},
        {"do_sample": True, "n": 3},
        {"do_sample": True, "watermarking_config": {"ngram_len": 3, "keys": [654, 400]}},
        {"exponential_decay_length_penalty": (3, 1.2), "repetition_penalty": 1.3},
    ],
    ids=lambda case: "-".join(case),
)
async def test_request_resumes_after_its_first_tokens(
    model: Seq2SeqModel, case: dict[str, Any]
) -> None:
    async with AsyncLLM(model, tokenizer=byte_tokenizer()) as llm:
        assert llm.fingerprint is None
        given = {"seed": 3, "max_new_tokens": 20, **case}
        whole = await llm.generate(PROMPT, **given)
        least = min(len(sample.token_ids) for sample in whole.samples)
        for cut in (1, 5, least):
            lists = [list(sample.token_ids[:cut]) for sample in whole.samples]
            rest = await llm.generate(PROMPT, generated_ids=lists, **given)
            for first, found, sample in zip(lists, rest.samples, whole.samples, strict=True):
                assert (*first, *found.token_ids) == sample.token_ids
                assert sample.text.endswith(found.text)
                assert found.finish_reason == sample.finish_reason
            assert rest.usage == whole.usage
