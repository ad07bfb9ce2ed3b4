"""Snippets of the documents that newer releases of the reference no longer run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, DisjunctiveConstraint, PhrasalConstraint

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = torch.tensor([[5, 17, 40, 8, 63, 5]])


def diverse_beams(hub: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(hub / "plain")
    outputs = model.generate(
        PROMPT,
        max_new_tokens=10,
        num_beams=6,
        num_beam_groups=3,
        diversity_penalty=1.0,
        do_sample=False,
        num_return_sequences=3,
        pad_token_id=0,
    )
    return outputs.tolist()


def words_that_must_come(hub: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(hub / "plain")
    force_words_ids = [[31, 7], [[50], [51, 9]]]
    outputs = model.generate(
        PROMPT,
        force_words_ids=force_words_ids,
        num_beams=5,
        max_new_tokens=10,
        remove_invalid_values=True,
        pad_token_id=0,
    )
    return outputs.tolist()


def constraints_as_objects(hub: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(hub / "plain")
    constraints = [PhrasalConstraint([31, 7]), DisjunctiveConstraint([[50], [51, 9]])]
    outputs = model.generate(
        PROMPT, constraints=constraints, num_beams=4, max_new_tokens=10, pad_token_id=0
    )
    return outputs.tolist()


def contrastive_search(hub: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(hub / "plain")
    model.config.pad_token_id = 0
    return model.generate(PROMPT, max_new_tokens=12, penalty_alpha=0.6, top_k=4).tolist()


def layers_contrasted(hub: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(hub / "plain")
    high = model.generate(
        PROMPT, max_new_tokens=8, dola_layers="high", do_sample=False, pad_token_id=0
    )
    some = model.generate(
        PROMPT, max_new_tokens=8, dola_layers=[1], do_sample=False, repetition_penalty=1.2,
        pad_token_id=0,
    )  # fmt: skip
    return high.tolist(), some.tolist()
