"""Models with an encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    T5ForConditionalGeneration,
)

if TYPE_CHECKING:
    from pathlib import Path


def a_translation(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "t5")
    model = AutoModelForSeq2SeqLM.from_pretrained(hub / "t5")
    inputs = tokenizer("The quick brown fox: I love cats.", return_tensors="pt")
    outputs = model.generate(**inputs, max_new_tokens=10)
    forced = model.generate(**inputs, max_new_tokens=10, forced_bos_token_id=tokenizer.eos_token_id)
    return outputs, tokenizer.batch_decode(outputs), tokenizer.batch_decode(forced)


def a_summary_by_beams(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "t5")
    model = T5ForConditionalGeneration.from_pretrained(hub / "t5")
    config = GenerationConfig(
        num_beams=4, max_new_tokens=9, min_new_tokens=3, decoder_start_token_id=0,
        eos_token_id=2, pad_token_id=0, num_return_sequences=2,
    )  # fmt: skip
    texts = ["Hello world, how are you today?", "lazy"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    outputs = model.generate(
        **batch, generation_config=config, return_dict_in_generate=True, output_scores=True
    )
    return outputs.sequences, outputs.sequences_scores


def a_decoder_that_is_given_a_start(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "t5")
    model = AutoModelForSeq2SeqLM.from_pretrained(hub / "t5")
    encoded = tokenizer("jumps over the lazy dog", return_tensors="pt")
    start = torch.tensor([[model.config.decoder_start_token_id, 12, 9]])
    given = model.generate(**encoded, decoder_input_ids=start, max_new_tokens=6)
    other = model.generate(**encoded, decoder_start_token_id=5, max_new_tokens=6)
    states = model.get_encoder()(**encoded)
    reused = model.generate(encoder_outputs=states, max_new_tokens=6)
    return given, other, reused
