"""Caches: kept, filled by hand, of fixed size, offloaded, shared; and embeddings for prompts."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    StaticCache,
)

if TYPE_CHECKING:
    from pathlib import Path


def a_cache_by_hand(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    past_key_values = DynamicCache(config=model.config)
    messages = "Hello world, how are you"
    inputs = tokenizer(messages, return_tensors="pt").to(model.device)
    generated_ids = inputs.input_ids
    cache_position = torch.arange(generated_ids.shape[1], dtype=torch.int64)
    for _ in range(8):
        outputs = model(
            **inputs,
            cache_position=cache_position,
            past_key_values=past_key_values,
            use_cache=True,
        )
        next_ids = outputs.logits[:, -1:].argmax(-1)
        generated_ids = torch.cat([generated_ids, next_ids], dim=-1)
        mask = inputs["attention_mask"]
        mask = torch.cat([mask, mask.new_ones((mask.shape[0], 1))], dim=-1)
        inputs = {"input_ids": next_ids, "attention_mask": mask}
        cache_position = cache_position[-1:] + 1
    return generated_ids, past_key_values.get_seq_length()


def what_forward_returns_goes_on(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2")
    ids = tokenizer("don't", return_tensors="pt").input_ids
    past, made = None, []
    for _ in range(5):
        out = model(ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        ids = out.logits[:, -1].argmax(-1, keepdim=True)
        made.append(ids.item())
    return made, past.layers[0].keys.shape if past is not None else None


def a_conversation_in_one_cache(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    cache = DynamicCache()
    history, answers = "", []
    for line in ("Hello", " The fox", " Why"):
        history += line
        inputs = tokenizer(history, return_tensors="pt")
        outputs = model.generate(**inputs, do_sample=False, max_new_tokens=5, past_key_values=cache)
        new = tokenizer.decode(outputs[0, inputs.input_ids.shape[1] :])
        answers.append(new)
        cache.crop(inputs.input_ids.shape[1] - cache.get_seq_length())
    return answers, cache.get_seq_length()


def going_on_from_an_output(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("lazy", return_tensors="pt")
    first = model.generate(**inputs, max_new_tokens=5, return_dict_in_generate=True)
    further = torch.cat([first.sequences, tokenizer("dog", return_tensors="pt").input_ids], -1)
    second = model.generate(
        further,
        attention_mask=torch.ones_like(further),
        past_key_values=first.past_key_values,
        max_new_tokens=5,
        return_dict_in_generate=True,
    )
    return second.sequences, second.past_key_values.get_seq_length()


def one_prefix_for_many(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    opening = "You are a helpful fox. "
    start = tokenizer(opening, return_tensors="pt")
    with torch.no_grad():
        prepared = model(**start, past_key_values=DynamicCache()).past_key_values
    answers = []
    for question in ("Who?", "1, 2, 3"):
        whole = tokenizer(opening + question, return_tensors="pt")
        outputs = model.generate(**whole, past_key_values=copy.deepcopy(prepared), max_new_tokens=6)
        answers.append(tokenizer.batch_decode(outputs)[0])
    return answers, prepared.get_seq_length()


def a_static_cache(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("Hello, my name is", return_tensors="pt")
    cache = StaticCache(config=model.config, max_cache_len=40)
    own = model.generate(**inputs, max_new_tokens=8, do_sample=False, past_key_values=cache)
    named = model.generate(
        **inputs, max_new_tokens=8, do_sample=False, cache_implementation="static"
    )
    return own, named, int(cache.get_seq_length())


def a_dynamic_cache_by_name(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("Fun fact: The shortest", return_tensors="pt")
    config = GenerationConfig(cache_implementation="dynamic", max_new_tokens=9)
    plain = model.generate(**inputs, generation_config=config)
    beams = model.generate(**inputs, max_new_tokens=9, num_beams=3)
    return plain, beams


def without_a_cache(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama", attn_implementation="eager")
    model.config.use_cache = False
    inputs = tokenizer("over the", return_tensors="pt")
    outputs = model.generate(
        **inputs,
        max_new_tokens=4,
        use_cache=False,
        return_dict_in_generate=True,
        output_attentions=True,
    )
    return outputs.sequences, [step[0].shape for step in outputs.attentions]


def embeddings_for_a_prompt(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("soft prompt", return_tensors="pt")
    embeds = model.get_input_embeddings()(inputs.input_ids)
    soft = torch.full((1, 2, embeds.shape[-1]), 0.01)
    alone = model.generate(inputs_embeds=torch.cat([soft, embeds], dim=1), max_new_tokens=6)
    both = model.generate(
        inputs.input_ids, inputs_embeds=embeds, attention_mask=inputs.attention_mask,
        max_new_tokens=6, num_beams=2,
    )  # fmt: skip
    return alone, both


def rows_of_a_cache(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    prompt = tokenizer("quick brown", return_tensors="pt")
    cache = model(**prompt, use_cache=True).past_key_values
    cache.batch_repeat_interleave(3)
    tokens = torch.tensor([[10], [20], [30]])
    logits = model(tokens, past_key_values=cache).logits
    cache.reorder_cache(torch.tensor([2, 0, 1]))
    cache.batch_select_indices([0, 2])
    return logits, model(tokens[:2], past_key_values=cache).logits, len(cache)
