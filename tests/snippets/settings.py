"""Configurations and what is saved: of a model, of its generation, of both together."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

if TYPE_CHECKING:
    from pathlib import Path


def a_generation_config(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    generation_config = GenerationConfig(
        max_new_tokens=9, num_beams=3, early_stopping=True, pad_token_id=0,
        eos_token_id=model.config.eos_token_id, decoder_start_token_id=0,
    )  # fmt: skip
    inputs = tokenizer("jumps", return_tensors="pt")
    return model.generate(**inputs, generation_config=generation_config)


def a_generation_config_on_disk(hub: Path) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        config = GenerationConfig(max_new_tokens=7, do_sample=True, top_k=5, temperature=0.4)
        config.save_pretrained(folder)
        config.save_pretrained(folder, config_file_name="mine.json")
        plain = GenerationConfig.from_pretrained(folder)
        named = GenerationConfig.from_pretrained(folder, "mine.json")
        changed, _ = GenerationConfig.from_pretrained(
            folder, top_k=1, foo=False, do_sample=True, return_unused_kwargs=True
        )
    return plain == named, plain.max_new_tokens, plain.temperature, changed.top_k


def a_generation_config_of_the_model(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2")
    model.generation_config.max_new_tokens = 6
    model.generation_config.pad_token_id = tokenizer.eos_token_id
    model.generation_config.repetition_penalty = 1.2
    inputs = tokenizer("def f(x)", return_tensors="pt")
    first = model.generate(**inputs)
    model.generation_config = GenerationConfig(max_new_tokens=4, pad_token_id=0)
    rest = model.generation_config.update(num_beams=2, nonsense=1)
    return (
        first,
        model.generate(**inputs),
        rest,
        model.generation_config.to_diff_dict()["num_beams"],
    )


def a_pad_token_on_the_config(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    model.config.my_note = {"by": "me"}
    tokenizer.padding_side = "left"
    batch = tokenizer(["Hello", "The quick brown fox"], padding=True, return_tensors="pt")
    generated = model.generate(**batch, max_new_tokens=5)
    return (
        generated,
        model.config.pad_token_id,
        model.config.my_note,
        model.config.to_dict()["n_head"],
    )


def saved_and_loaded(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    model.generation_config.max_new_tokens = 5
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        words = AutoTokenizer.from_pretrained(folder)
    ids = loaded.generate(**words("lazy dog", return_tensors="pt"))
    return (
        ids,
        words.chat_template,
        loaded.config.hidden_size,
        loaded.generation_config.max_new_tokens,
    )


def facts_of_a_model(hub: Path) -> Any:
    config = AutoConfig.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama", config=config)
    model.to("cpu").eval()
    shape = tuple(model.get_input_embeddings().weight.shape)
    half = model.to(torch.bfloat16)
    return (
        config.model_type,
        config.num_hidden_layers,
        model.num_parameters(),
        next(model.parameters()).device.type,
        model.device.type,
        str(half.dtype),
        shape,
        model.can_generate(),
        type(model).__name__,
        model.config.is_encoder_decoder,
    )


def mode_and_defaults(hub: Path) -> Any:
    config = GenerationConfig.from_model_config(AutoConfig.from_pretrained(hub / "t5"))
    mode = GenerationConfig(num_beams=3, do_sample=True).get_generation_mode()
    return config.decoder_start_token_id, config.eos_token_id, config.pad_token_id, str(mode.value)
