"""Train the byte-level tokenizer, and write its files."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from asyncgen_apps.demo_model.corpus import BOS, END, PAD, ROLES, UNK, documents

if TYPE_CHECKING:
    from pathlib import Path

SPECIALS = (PAD, BOS, END, UNK, *(f"<|{role}|>" for role in ROLES))
TOKENIZER_DOCUMENTS = 6000
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('Unknown role: ' ~ message['role']) }}"
    "{% endif %}"
    "{{ '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(
    seed: int, vocab_size: int = 2048, sample: int = TOKENIZER_DOCUMENTS
) -> Tokenizer:
    """Learn byte-pair merges from the corpus.

    Args:
        seed: The corpus seed.
        vocab_size: Number of tokens, special ones and all 256 bytes included.
        sample: Number of documents to learn from.

    Returns:
        A tokenizer that can write any text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (
        segment.text.removesuffix(END)
        for drawn in islice(documents(seed), sample)
        for segment in drawn
        if segment.text not in SPECIALS
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, SPECIALS.index(BOS))],
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    Args:
        tokenizer: The tokenizer.
        folder: Folder to write to.
        context: The model's largest number of positions.
    """
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": UNK,
        "additional_special_tokens": [f"<|{role}|>" for role in ROLES],
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
