"""Side by side with transformers: the same text, from its models and ours of its streamers."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
import transformers

import streamers
from tests.cases import for_each
from tests.streamers.cases import Case, case_of
from tests.streamers.producers import ids_of, tiny_llama


@functools.cache
def model_and_tokenizer(kind: str = "byte_level") -> tuple[Any, Any]:
    """Return a small model of transformers, made at the first call."""
    return tiny_llama(case_of(kind))


PROMPTS = ["An increasing sequence: one,", "süß\nund gut", "中文字符 here", "x"]


@pytest.mark.gate
@for_each("skip_prompt", [False, True])
@for_each("skip_special", [None, False, True])
def test_the_text_is_that_of_the_reference(skip_prompt: bool, skip_special: bool | None) -> None:
    model, tokenizer = model_and_tokenizer()
    kwargs: dict[str, Any] = {} if skip_special is None else {"skip_special_tokens": skip_special}
    for seed, prompt in enumerate(PROMPTS):
        texts = []
        for module in (transformers, streamers):
            streamer = module.TextIteratorStreamer(tokenizer, skip_prompt=skip_prompt, **kwargs)
            inputs = tokenizer(prompt, return_tensors="pt")
            torch.manual_seed(seed)
            model.generate(**inputs, streamer=streamer, max_new_tokens=30, do_sample=True)
            texts.append("".join(streamer))
        assert texts[0] == texts[1]


@pytest.mark.parametrize("skip_prompt", [False, True])
def test_printed_text_equals_the_reference(
    skip_prompt: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = model_and_tokenizer()
    for prompt in PROMPTS:
        printed = []
        for module in (transformers, streamers):
            streamer = module.TextStreamer(tokenizer, skip_prompt=skip_prompt)
            model.generate(
                **tokenizer(prompt, return_tensors="pt"),
                streamer=streamer,
                max_new_tokens=20,
                do_sample=False,
            )
            printed.append(capsys.readouterr().out)
        assert printed[0] == printed[1]


@pytest.mark.parametrize("kind", ["byte_level", "unigram_always", "word_piece_cleanup"])
def test_the_text_is_that_of_decoding_what_generate_returns(kind: str) -> None:
    model, tokenizer = model_and_tokenizer(kind)
    for seed, prompt in enumerate(PROMPTS):
        inputs = tokenizer(prompt, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        streamer = streamers.TextIteratorStreamer(tokenizer)
        torch.manual_seed(seed)
        ids = model.generate(**inputs, streamer=streamer, max_new_tokens=30, do_sample=True)
        assert "".join(streamer) == tokenizer.decode(ids[0])


@pytest.mark.parametrize("kind", ["byte_level", "word_piece", "unigram_first"])
def test_the_clean_up_of_transformers_is_followed(kind: str) -> None:
    backend = case_of(kind).tokenizer
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=True
    )
    text = "it does n't , I 'm sure . ' so ' we 've been ! n ' t ? well"
    ids = tokenizer.encode(text, add_special_tokens=False)
    for cut in range(len(ids)):
        streamer = streamers.TextIteratorStreamer(tokenizer)
        streamer.put([ids[:cut]])
        for token_id in ids[cut:]:
            streamer.put([token_id])
        streamer.end()
        assert "".join(streamer) == tokenizer.decode(ids)


def test_cancelling_stops_a_model_of_transformers() -> None:
    model, tokenizer = model_and_tokenizer()
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    for criteria in (
        lambda flag: [flag],
        lambda flag: transformers.StoppingCriteriaList([flag]),
    ):
        streamer = streamers.TextIteratorStreamer(tokenizer)
        streamer.cancelled.set()
        ids = model.generate(
            **inputs, max_new_tokens=50, stopping_criteria=criteria(streamer.cancelled)
        )
        assert ids.shape[1] == inputs["input_ids"].shape[1] + 1


def test_run_works_with_a_model_of_transformers() -> None:
    model, tokenizer = model_and_tokenizer()
    streamer = streamers.TextIteratorStreamer(tokenizer, skip_prompt=True)
    inputs = dict(tokenizer(PROMPTS[0], return_tensors="pt"))
    left = threading.Event()

    def wait(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert ids.shape[1] < inputs["input_ids"].shape[1] + 100 or left.wait(60)
        return scores

    kwargs = dict(inputs, max_new_tokens=200, min_new_tokens=200, logits_processor=[wait])
    thread = threading.Thread(target=streamer.run, args=(model.generate,), kwargs=kwargs)
    thread.start()
    for _ in streamer:
        break
    left.set()
    thread.join()
    assert streamer.cancelled


def test_an_error_in_a_model_of_transformers_reaches_the_reader() -> None:
    model, tokenizer = model_and_tokenizer()

    def broken(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] > 30:
            raise ArithmeticError("broken processor")
        return scores

    streamer = streamers.TextIteratorStreamer(tokenizer)
    kwargs = dict(
        tokenizer(PROMPTS[0], return_tensors="pt"), max_new_tokens=50, logits_processor=[broken]
    )
    thread = threading.Thread(target=streamer.run, args=(model.generate,), kwargs=kwargs)
    thread.start()
    with pytest.raises(streamers.ProducerError, match="broken processor") as caught:
        list(streamer)
    thread.join()
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_rows_of_a_transformers_batch_are_separate() -> None:
    model, tokenizer = model_and_tokenizer()
    tokenizer.padding_side = "left"
    inputs = tokenizer(PROMPTS[:3], return_tensors="pt", padding=True)
    streamer = streamers.TextIteratorStreamer(tokenizer, skip_special_tokens=True)
    ids = model.generate(**inputs, streamer=streamer, max_new_tokens=20, do_sample=True)
    texts = [""] * 3
    for text in streamer:
        texts[text.row] += text
    assert texts == tokenizer.batch_decode(ids, skip_special_tokens=True)


def test_assisted_decoding_puts_several_tokens_at_once() -> None:
    model, tokenizer = model_and_tokenizer()
    streamer = streamers.TextIteratorStreamer(tokenizer)
    ids = model.generate(
        **tokenizer(PROMPTS[0], return_tensors="pt"),
        streamer=streamer,
        assistant_model=model,
        max_new_tokens=20,
        do_sample=False,
    )
    assert "".join(streamer) == tokenizer.decode(ids[0])


def test_fail_after_the_end_changes_nothing(byte_level: Case) -> None:
    streamer = streamers.TextIteratorStreamer(byte_level.tokenizer)
    streamer.put([ids_of(byte_level, "a b")])
    streamer.end()
    streamer.fail(KeyError("late"))
    assert list(streamer) == ["a b"]
