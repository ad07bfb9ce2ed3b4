"""Answers do not depend on torch's defaults, which are the app's: not one bit of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen import LLM
from asyncgen.native import supports
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.doubles.checkpoints import save_checkpoint
from tests.models.build import random_config, random_ids, random_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLED: dict[str, Any] = {"do_sample": True, "seed": 3}
BEAMS: dict[str, Any] = {"do_sample": False, "num_beams": 4}

FEW: list[dict[str, Any]] = [
    {"do_sample": False, "logprobs": True, "top_logprobs": 3, "prompt_logprobs": 2},
    {**SAMPLED, "min_p": 0.05},
    {**SAMPLED, "top_p": 0.9, "logprobs": True},
    {**BEAMS, "early_stopping": True, "length_penalty": 0.7},
    {**BEAMS, "num_beam_groups": 2, "diversity_penalty": 0.7},
    {**BEAMS, "force_words_ids": [[[65]]]},
]
"""Settings whose answers a default has changed, or ended in an error."""

MORE: list[dict[str, Any]] = [
    *FEW,
    {**SAMPLED, "temperature": 0.7, "top_k": 20},
    {**SAMPLED, "typical_p": 0.7},
    {**SAMPLED, "eta_cutoff": 0.01, "epsilon_cutoff": 0.01},
    {**SAMPLED, "top_h": 0.5},
    {**SAMPLED, "top_n_sigma": 1.0},
    {**SAMPLED, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    {**SAMPLED, "mirostat": 2},
    {**SAMPLED, "dynatemp_range": 0.5},
    {**SAMPLED, "repetition_penalty": 1.3, "presence_penalty": 0.4, "no_repeat_ngram_size": 3},
    {**SAMPLED, "dry_multiplier": 0.8},
    {**SAMPLED, "num_beams": 3},
    {"sequence_bias": [[[5], 2.0], [[7, 8], 1.0]], "seed": 3},
    {"do_sample": False, "penalty_alpha": 0.6, "top_k": 4},
    {"do_sample": False, "dola_layers": "high"},
    {"do_sample": False, "prompt_lookup_num_tokens": 3},
    {"guidance_scale": 1.5, "negative_prompt_ids": [5, 6, 7], "seed": 3},
    {"regex": "[a-z ]{3,20}", "seed": 3},
    {"watermarking_config": {"bias": 2.5, "seeding_scheme": "selfhash"}, "seed": 3},
]

FAMILIES = (
    "gpt2 bloom gemma2 phi3 mixtral mamba falcon_h1 recurrent_gemma minimax mpt lfm2 qwen3_next"
).split()

IN_TORCH: list[dict[str, Any]] = [
    {"cache_implementation": "static"},
    {"cache_implementation": "quantized"},
    {"cache_implementation": "quantized", "cache_config": {"backend": "hqq"}},
    {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}},
    {"cache_implementation": "offloaded"},
    {"use_cache": False},
    {"do_sample": True, "min_p": 0.05, "top_p": 0.9},
    {"num_beams": 3, "num_return_sequences": 2, "output_scores": True},
    {"penalty_alpha": 0.6, "top_k": 3, "low_memory": True},
    {"output_logits": True, "output_hidden_states": True, "output_attentions": True},
]

DEFAULTS = [
    (torch.bfloat16, None),
    (torch.float16, None),
    (torch.float64, None),
    (torch.float32, "meta"),
]


@contextmanager
def defaults(dtype: torch.dtype, device: str | None) -> Iterator[None]:
    """Set torch's defaults, as an app does, and take them back."""
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def answers(llm: LLM, settings: list[dict[str, Any]]) -> list[Any]:
    """Return all that an engine computes for each of the settings, and an embedding."""
    found: list[Any] = [llm.embed("Once upon a time").vector.tolist()]
    for each in settings:
        answer = llm.generate("Once upon a time", max_new_tokens=8, **each)
        found.append((answer.token_ids, answer.logprobs, answer.prompt_logprobs))
    return found


def test_answers_under_other_defaults() -> None:
    with LLM("demo") as llm:
        expected = answers(llm, FEW)
        with defaults(torch.float16, "meta"):  # changed while it runs
            assert answers(llm, FEW) == expected
    with defaults(torch.bfloat16, "meta"), LLM("demo") as llm:  # set before it is opened
        assert answers(llm, FEW) == expected


@pytest.mark.gate
@pytest.mark.parametrize("dtype, device", DEFAULTS)
def test_answers_with_all_settings(dtype: torch.dtype, device: str | None) -> None:
    with LLM("demo") as llm:
        expected = answers(llm, MORE)
        with defaults(dtype, device):
            assert answers(llm, MORE) == expected
    with defaults(dtype, device), LLM("demo") as llm:
        assert answers(llm, MORE) == expected


def computed(
    folder: Path, models: dict[str, PreTrainedModel], ids: torch.Tensor
) -> dict[str, list[torch.Tensor]]:
    """Compute with every family, cache and way to load, in a plain loop over `model.generate`."""
    found: dict[str, list[torch.Tensor]] = {}
    for name, model in models.items():
        torch.manual_seed(0)
        drawn: Any = model.generate(ids, max_new_tokens=5, do_sample=True, min_p=0.01)
        found[name] = [drawn, model(input_ids=ids).logits]
    for number, settings in enumerate(IN_TORCH):
        torch.manual_seed(0)
        model = asyncgen.load_model(folder)
        output: Any = model.generate(
            ids % 96, max_new_tokens=5, return_dict_in_generate=True, **settings
        )
        tensors = [output.sequences, *(output.scores or ()), *(output.logits or ())]
        found[str(number)] = [*tensors, getattr(output, "sequences_scores", output.sequences)]
    for packing in ("int4", "int8"):
        model = asyncgen.load_model(folder, quantize=packing)
        found[packing] = [model(input_ids=ids % 96).logits]
    return found


@pytest.mark.gate
@pytest.mark.skipif(not supports(torch.float32), reason="torch's kernels promise nothing")
def test_families_caches_and_loading(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, hidden_size=64, intermediate_size=64)
    models = {name: PreTrainedModel(random_model(random_config(name))) for name in FAMILIES}
    ids = random_ids(2, 7)
    expected = computed(tmp_path, models, ids)
    with defaults(torch.bfloat16, "meta"):
        found = computed(tmp_path, models, ids)
    for name, tensors in expected.items():
        for ours, theirs in zip(found[name], tensors, strict=True):
            assert ours.dtype == theirs.dtype, name
            assert ours.device == theirs.device, name
            assert torch.equal(ours, theirs), name
