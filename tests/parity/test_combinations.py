"""Ten parameters at a time: the whole of ``generate`` gives what transformers gives."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.errors import InvalidScoresError
from asyncgen.reference.load_model import load_model

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

VOCABULARY = 60
AT_A_TIME = 10
TOLERANCE = 1e-5

CHOICES: dict[str, list[Any]] = {
    "do_sample": [True, False],
    "temperature": [0.5, 1.0, 1.7],
    "top_k": [0, 3, 20],
    "top_p": [0.5, 0.9, 1.0],
    "min_p": [0.0, 0.05, 0.3],
    "top_h": [0.3, 0.9],
    "typical_p": [0.4, 0.9, 1.0],
    "epsilon_cutoff": [0.0, 0.01],
    "eta_cutoff": [0.0, 0.02],
    "repetition_penalty": [0.8, 1.3],
    "encoder_repetition_penalty": [0.7, 1.5],
    "no_repeat_ngram_size": [1, 2, 3],
    "encoder_no_repeat_ngram_size": [2, 3],
    "bad_words_ids": [[[5], [6, 7]], [[8, 9, 10], [2]]],
    "sequence_bias": [[[[4], 3.0], [[5, 6], -4.0]], {(7,): 2.0, (8, 9): -2.5}],
    "min_length": [6, 12],
    "min_new_tokens": [3, 7],
    "max_new_tokens": [1, 5, 9],
    "max_length": [14, 18],
    "forced_bos_token_id": [3],
    "forced_eos_token_id": [2, [2, 11]],
    "remove_invalid_values": [True],
    "exponential_decay_length_penalty": [(2, 1.2), (0, 1.05)],
    "suppress_tokens": [[4, 5], list(range(20, 50))],
    "begin_suppress_tokens": [[2, 6]],
    "renormalize_logits": [True],
    "guidance_scale": [0.5, 1.5, 2],
    "negative_prompt_ids": ["short", "long"],
    "watermarking_config": [
        {"bias": 2.0},
        {"bias": 1.0, "seeding_scheme": "selfhash", "context_width": 2, "greenlist_ratio": 0.5},
        {"keys": [1, 2, 3], "ngram_len": 3},
    ],
    "num_return_sequences": [1, 2, 3],
    "eos_token_id": [2, [2, 11, 12], list(range(0, 60, 5))],
    "pad_token_id": [0, 1],
    "use_cache": [True, False],
    "cache_implementation": ["dynamic"],
    "prefill_chunk_size": [2, 5],
    "batch": ["padded", "one row"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, Any]]:
    """The same tiny random weights in transformers and here."""
    pairs = []
    for model_type in ("llama", "qwen3"):
        torch.manual_seed(7)
        config = transformers.AutoConfig.for_model(
            model_type,
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=128,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
        theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
        folder: Path = tmp_path_factory.mktemp(model_type)
        theirs.save_pretrained(folder)
        pairs.append((theirs, load_model(folder, device="cpu")))
    return pairs


def draw(choice: random.Random) -> dict[str, Any]:
    """Ten parameters with a random value each."""
    names = choice.sample(list(CHOICES), AT_A_TIME)
    return {name: choice.choice(CHOICES[name]) for name in names}


def arguments(values: dict[str, Any], choice: random.Random) -> dict[str, Any]:
    """A call of ``generate`` with these parameters, and all that may be returned."""
    options = dict(values)
    batch = options.pop("batch", "rows")
    rows, width = (1 if batch == "one row" else 3), 6
    ids = torch.tensor([[choice.randrange(3, VOCABULARY) for _ in range(width)]] * rows)
    mask = torch.ones_like(ids)
    if batch == "padded":
        mask[0, :3] = 0
        ids[0, :3] = 0
    ids[1:] = torch.tensor([[choice.randrange(3, VOCABULARY) for _ in range(width)]])
    negative = options.pop("negative_prompt_ids", None)
    if negative is not None and options.get("num_return_sequences", 1) == 1:
        length = 2 if negative == "short" else 9
        row = [choice.randrange(3, VOCABULARY) for _ in range(length)]
        options["negative_prompt_ids"] = torch.tensor([row] * rows)
    if not {"max_new_tokens", "max_length"} & options.keys():
        options["max_new_tokens"] = 7
    return {
        **options,
        "input_ids": ids,
        "attention_mask": mask,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }


def synthid_for(module: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The reference takes tournament watermarks as objects only."""
    watermark = options.get("watermarking_config")
    if isinstance(watermark, dict) and "keys" in watermark:
        return options | {"watermarking_config": module.SynthIDTextWatermarkingConfig(**watermark)}
    if isinstance(watermark, dict):
        return options | {"watermarking_config": module.WatermarkingConfig(**watermark)}
    return options


def run(model: Any, options: dict[str, Any], seed: int) -> Any:
    """The output, or the exception if it is one that both may raise."""
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.generate(**options)
    except (ValueError, RuntimeError, IndexError, InvalidScoresError) as error:
        return error


def compare(models: list[tuple[Any, Any]], seed: int) -> str:
    """Run a combination on both sides; tells whether both gave tokens or both refused."""
    choice = random.Random(seed)
    theirs, ours = models[seed % len(models)]
    values = draw(choice)
    options = arguments(values, choice)
    expected = run(theirs, synthid_for(transformers, options), seed)
    found = run(ours, options, seed)
    if isinstance(expected, Exception):
        if isinstance(expected, IndexError) and not isinstance(found, Exception):
            return "only theirs failed"  # no green candidate: they index with an empty list
        assert isinstance(found, Exception), (seed, values, expected)
        return "both refused"
    if isinstance(found, InvalidScoresError):
        # They pick some token all the same from NaN, or where every token is banned.
        assert not all(bool(step.amax(-1).isfinite().all()) for step in expected.scores), seed
        return "no token to pick"
    assert not isinstance(found, Exception), (seed, values, found)
    for ours_step, theirs_step in zip(found.scores, expected.scores, strict=False):
        assert torch.equal(ours_step.isneginf(), theirs_step.isneginf()), (seed, values)
        assert torch.allclose(ours_step, theirs_step, atol=TOLERANCE, rtol=1e-4), (seed, values)
    assert found.sequences.tolist() == expected.sequences.tolist(), (seed, values)
    assert len(found.scores) == len(expected.scores)
    return "same tokens"


def test_sixty_combinations(models: list[tuple[Any, Any]]) -> None:
    outcomes = [compare(models, seed) for seed in range(60)]
    assert outcomes.count("same tokens") >= 40, outcomes


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_thousand_combinations(
    models: list[tuple[Any, Any]], record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [compare(models, 1000 + seed) for seed in range(2000)]
    counts = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
    for outcome, count in counts.items():
        record_property(outcome, count)
    with capsys.disabled():
        import sys

        sys.stdout.write(f"\n2000 combinations of {AT_A_TIME} parameters: {counts}\n")
    assert counts["same tokens"] >= 1400
