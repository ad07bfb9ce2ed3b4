"""Texts: tokenizers, batches, chats, streamers, pipelines, and the shared batch."""

from __future__ import annotations

import asyncio
import contextlib
import io
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AsyncTextIteratorStreamer,
    AutoModelForCausalLM,
    AutoTokenizer,
    ContinuousBatchingConfig,
    GenerationConfig,
    TextIteratorStreamer,
    TextStreamer,
    pipeline,
)

if TYPE_CHECKING:
    from pathlib import Path

CHAT = [
    {"role": "system", "content": "You are a friendly fox."},
    {"role": "user", "content": "Who is lazy?"},
]


def tokenizer_in_use(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama", use_fast=True, legacy=False)
    tokenizer.padding_side = "right"
    text = "Hello world, naïve 😀"
    ids = tokenizer.encode(text)
    batch = tokenizer(["a b", "The quick brown fox"], padding=True, truncation=True, max_length=4)
    return (
        ids,
        tokenizer.decode(ids),
        tokenizer.tokenize(text),
        tokenizer.convert_ids_to_tokens(ids),
        tokenizer.convert_tokens_to_ids("<|im_end|>"),
        tokenizer.eos_token_id,
        tokenizer.vocab_size,
        len(tokenizer),
        batch["input_ids"],
        batch.attention_mask,
        tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True),
        tokenizer.all_special_tokens,
        tokenizer.convert_tokens_to_string(tokenizer.tokenize(text)),
        tokenizer.vocab["<|im_end|>"],
        batch.data["input_ids"],
    )


def padded_by_hand(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    texts = ["Hello", "The quick brown fox", "1, 2, 3"]
    encoded = [tokenizer(text, return_token_type_ids=False) for text in texts]
    batch = tokenizer.pad(encoded, padding="longest", return_tensors="pt", pad_to_multiple_of=8)
    return dict(batch), tokenizer.padding_side, tokenizer.pad_token_id


def a_padded_batch(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama", padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    prompts = ["Hello world", "The quick brown fox jumps over", "é"]
    inputs = tokenizer(prompts, padding=True, return_tensors="pt").to(model.device)
    first = model.generate(**inputs, max_new_tokens=10, do_sample=False)
    end = first[1, -4].item()
    stopped = model.generate(**inputs, max_new_tokens=10, eos_token_id=[end, 2], pad_token_id=0)
    new = stopped[:, inputs.input_ids.shape[1] :]
    return first, stopped, tokenizer.batch_decode(new, skip_special_tokens=True)


def a_chat(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama", dtype="auto")
    prompt = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer.apply_chat_template(
        CHAT, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    ).to(model.device)
    outputs = model.generate(**inputs, max_new_tokens=12)
    answer = tokenizer.decode(outputs[0][inputs["input_ids"].shape[-1] :])
    return prompt, dict(inputs), answer


def several_turns(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    messages: list[dict[str, str]] = []
    for question in ("Hello?", "How are you?"):
        messages.append({"role": "user", "content": question})
        rendered = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        inputs = tokenizer(rendered, return_tensors="pt", add_special_tokens=False)
        made = model.generate(**inputs, max_new_tokens=6, do_sample=False)
        reply = tokenizer.decode(made[0, inputs.input_ids.size(1) :], skip_special_tokens=True)
        messages.append({"role": "assistant", "content": reply})
    return messages


def streamed_to_the_terminal(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer(["An increasing sequence: one,"], return_tensors="pt")
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        whole = TextStreamer(tokenizer)
        model.generate(**inputs, streamer=whole, max_new_tokens=10)
        answer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        model.generate(**inputs, streamer=answer, max_new_tokens=10)
    return shown.getvalue()


def streamed_from_a_thread(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer(["The fox says"], return_tensors="pt")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60.0)
    thread = Thread(
        target=model.generate, kwargs=dict(inputs, streamer=streamer, max_new_tokens=12)
    )
    thread.start()
    generated = ""
    for new_text in streamer:
        generated += new_text
    thread.join()
    return generated


def streamed_in_a_loop(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer(["The dog says"], return_tensors="pt")

    async def main() -> str:
        streamer = AsyncTextIteratorStreamer(tokenizer)
        thread = Thread(
            target=model.generate, kwargs=dict(inputs, streamer=streamer, max_new_tokens=12)
        )
        thread.start()
        generated = ""
        async for new_text in streamer:
            generated += new_text
        thread.join()
        return generated

    return asyncio.run(main())


def a_pipeline(hub: Path) -> Any:
    pipe = pipeline("text-generation", model=str(hub / "llama"), device="cpu")
    one = pipe("The quick", max_new_tokens=8, do_sample=False)
    some = pipe(["Hello", "Hello world"], max_new_tokens=5, do_sample=False, return_full_text=False)
    chat = pipe(CHAT, max_new_tokens=6, do_sample=False)
    return one[0]["generated_text"], some, chat[0]["generated_text"][-1]


def a_pipeline_of_parts(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    assistant = AutoModelForCausalLM.from_pretrained(hub / "draft")
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer, assistant_model=assistant)
    return pipe("Once upon", max_new_tokens=9, do_sample=False, return_full_text=False)


def many_prompts_at_once(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    prompts = ["The quick brown fox", "Hello", "1, 2, 3, 45"]
    inputs = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    config = GenerationConfig(max_new_tokens=7, eos_token_id=2, do_sample=False)
    outputs = model.generate_batch(
        inputs,
        generation_config=config,
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=64, max_batch_tokens=64, page_size=16
        ),
        progress_bar=False,
    )
    answers = [outputs[key].generated_tokens for key in sorted(outputs)]
    return answers, [tokenizer.decode(answer) for answer in answers]


def logits_of_a_batch(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama", padding_side="right")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    batch = tokenizer(["Hello world", "Yes"], padding=True, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**batch, output_hidden_states=True, use_cache=False)
    last = batch["attention_mask"].sum(dim=1) - 1
    picked = outputs.logits[torch.arange(2), last]
    return picked.log_softmax(-1), [state.shape for state in outputs.hidden_states]
