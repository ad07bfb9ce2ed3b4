"""Steering and stopping: processors, criteria, biases, bans, watermarks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    WatermarkDetector,
    WatermarkingConfig,
    set_seed,
)

if TYPE_CHECKING:
    from pathlib import Path


def a_processor_of_ones_own(hub: Path) -> Any:
    class EvenTokensOnly(LogitsProcessor):  # type: ignore[misc]
        def __init__(self, step: int = 2) -> None:
            self.step = step
            self.calls = 0

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            blocked = torch.ones_like(scores, dtype=torch.bool)
            blocked[:, :: self.step] = False
            return scores.masked_fill(blocked, -float("inf"))

    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    processor = EvenTokensOnly()
    inputs = tokenizer("thanks;", return_tensors="pt")
    ids = model.generate(
        inputs.input_ids,
        attention_mask=inputs.attention_mask,
        logits_processor=LogitsProcessorList([processor]),
        max_new_tokens=8,
    )
    return ids, processor.calls


def a_criterion_of_ones_own(hub: Path) -> Any:
    class StopAfterWord(StoppingCriteria):  # type: ignore[misc]
        def __init__(self, ids: list[int], start: int) -> None:
            super().__init__()
            self.ids, self.start = ids, start

        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> bool:
            return any(token in self.ids for token in input_ids[0, self.start :].tolist())

    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("lazy dog", return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    whole = model.generate(**inputs, max_new_tokens=12)
    wanted = whole[0, length + 4].item()
    cut = model.generate(
        **inputs,
        max_new_tokens=12,
        stopping_criteria=StoppingCriteriaList([StopAfterWord([wanted], length)]),
    )
    return whole, cut


def rows_stop_one_by_one(hub: Path) -> Any:
    class UntilSum(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            return input_ids.sum(dim=-1) > 1500

    tokenizer = AutoTokenizer.from_pretrained(hub / "llama", padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer(["Hello", "don't worry."], padding=True, return_tensors="pt")
    criteria = StoppingCriteriaList([UntilSum(), MaxLengthCriteria(max_length=24)])
    return model.generate(**inputs, stopping_criteria=criteria)


def stop_strings_and_time(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("fine, thanks", return_tensors="pt")
    plain = model.generate(**inputs, max_new_tokens=16)
    text = tokenizer.decode(plain[0, inputs.input_ids.shape[1] :])
    begun = time.time()
    stopped = model.generate(
        **inputs, max_new_tokens=16, stop_strings=[text[5:8]], tokenizer=tokenizer, max_time=600.0
    )
    return text, stopped, time.time() - begun < 600


def processors_by_hand(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2")
    processors = LogitsProcessorList(
        [
            MinLengthLogitsProcessor(12, eos_token_id=model.generation_config.eos_token_id),
            RepetitionPenaltyLogitsProcessor(penalty=1.3),
        ]
    )
    processors.append(TemperatureLogitsWarper(0.7))
    processors.extend([TopKLogitsWarper(top_k=30), TopPLogitsWarper(top_p=0.9)])
    ids = tokenizer("naïve", return_tensors="pt")["input_ids"]
    torch.manual_seed(8)
    for _ in range(6):
        scores = processors(ids, model(ids).logits[:, -1, :])
        ids = torch.cat([ids, torch.multinomial(scores.softmax(-1), 1)], dim=1)
    return ids, scores


def bad_words(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2")
    model.generation_config.pad_token_id = tokenizer.eos_token_id
    inputs = tokenizer(["over the lazy"], return_tensors="pt")
    plain = model.generate(inputs["input_ids"], max_new_tokens=6)
    first = tokenizer.decode(plain[0, -6])
    banned = tokenizer([first, " dog", "fox jumps"], add_special_tokens=False).input_ids
    return plain, model.generate(inputs["input_ids"], max_new_tokens=6, bad_words_ids=banned)


def biases(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2", pad_token_id=0)
    inputs = tokenizer(["The full name is"], return_tensors="pt")

    def tokens(word: str) -> tuple[int, ...]:
        return tuple(tokenizer([word], add_special_tokens=False).input_ids[0])

    towards = model.generate(
        inputs["input_ids"], max_new_tokens=4, num_beams=4,
        sequence_bias=[[list(tokens(" quick fox")), 10.0]],
    )  # fmt: skip
    by_tuples = model.generate(
        inputs["input_ids"],
        max_new_tokens=4,
        sequence_bias={tokens(" dog"): 9.0, tokens("a"): -9.0},
    )
    return towards, by_tuples


def suppressed_tokens(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("Hello world", return_tensors="pt")
    outputs = model.generate(
        **inputs,
        max_new_tokens=5,
        suppress_tokens=[7, 8, 9],
        begin_suppress_tokens=torch.tensor([30, 31]).tolist(),
        return_dict_in_generate=True,
        output_scores=True,
    )
    return outputs.sequences, outputs.scores[0][0, [7, 30]], outputs.scores[1][0, [7, 30]]


def lengths(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("Just wanted to let you know, I", return_tensors="pt")
    set_seed(1)
    decayed = model.generate(
        **inputs,
        do_sample=True,
        temperature=0.9,
        max_length=50,
        pad_token_id=0,
        exponential_decay_length_penalty=(4, 1.6),
    )
    forced = model.generate(
        **inputs, max_new_tokens=6, forced_eos_token_id=tokenizer.eos_token_id, min_new_tokens=4
    )
    return decayed, forced, tokenizer.batch_decode(forced)


def repetition(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer(["I'm not going to I'm not"], return_tensors="pt")
    options: list[dict[str, Any]] = [
        {"repetition_penalty": 1.1},
        {"no_repeat_ngram_size": 2},
        {"encoder_repetition_penalty": 1.2},
        {"encoder_no_repeat_ngram_size": 2},
        {"renormalize_logits": True, "remove_invalid_values": True},
    ]
    return [model.generate(**inputs, max_new_tokens=10, **option) for option in options]


def allowed_by_prefix(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("quick brown", return_tensors="pt")
    entity = tokenizer(" fox jumps", return_tensors="pt").input_ids[0]

    def allowed(batch_id: int, input_ids: torch.Tensor) -> list[int]:
        """Leave no way but the entity, over and over."""
        done = input_ids.shape[-1] - inputs.input_ids.shape[-1]
        return [entity[done % len(entity)].item()]

    return model.generate(**inputs, max_new_tokens=5, num_beams=2, prefix_allowed_tokens_fn=allowed)


def guidance(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer(["Today, a dragon flew"], return_tensors="pt")
    plain = model.generate(inputs["input_ids"], guidance_scale=1.5, max_new_tokens=7)
    negative = tokenizer(["A very sad event"], return_tensors="pt")
    away = model.generate(
        **inputs,
        guidance_scale=2,
        negative_prompt_ids=negative["input_ids"],
        negative_prompt_attention_mask=negative["attention_mask"],
        max_new_tokens=7,
    )
    return plain, away


def watermark(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    tokenizer.padding_side = "left"
    inputs = tokenizer(["This is the", "Hello"], padding=True, return_tensors="pt")
    length = inputs["input_ids"].shape[-1]
    config = WatermarkingConfig(bias=2.5, context_width=1, seeding_scheme="selfhash")
    set_seed(0)
    marked = model.generate(**inputs, watermarking_config=config, do_sample=True, max_new_tokens=20)
    detector = WatermarkDetector(
        model_config=model.config, device="cpu", watermarking_config=config
    )
    found = detector(marked[:, length:], return_dict=True)
    verdict = detector(marked[:, length:])
    return marked, found.prediction.tolist(), found.z_score, found.p_value, verdict


def watermark_of_synthid(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama", padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    config = SynthIDTextWatermarkingConfig(
        keys=[654, 400, 836, 123, 340, 443, 597, 160, 57], ngram_len=5
    )
    prompts = tokenizer(["Once upon a time, "], return_tensors="pt", padding=True)
    set_seed(11)
    sequences = model.generate(
        **prompts, watermarking_config=config, do_sample=True, max_new_tokens=10
    )
    return sequences, tokenizer.batch_decode(sequences, skip_special_tokens=True)


def healed(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    tokenizer.pad_token = tokenizer.bos_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2", pad_token_id=2)
    inputs = tokenizer("The quick bro", return_tensors="pt").input_ids
    return model.generate(inputs, token_healing=True, tokenizer=tokenizer, max_new_tokens=5)
