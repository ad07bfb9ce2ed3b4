"""``model.generate`` gives the tokens that transformers gives, greedy and sampled."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.reference.load_model import load_model
from tests.generation.alike import same_layers

if TYPE_CHECKING:
    from pathlib import Path

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gpt2")
CONFIGS_EACH = 11


def _shape(choice: random.Random, model_type: str) -> dict[str, Any]:
    """A random small configuration of an architecture."""
    heads = choice.choice([2, 4, 6])
    shape: dict[str, Any] = {
        "vocab_size": choice.choice([61, 128, 300]),
        "hidden_size": heads * choice.choice([8, 12]),
        "intermediate_size": choice.choice([24, 40]),
        "num_hidden_layers": choice.choice([1, 2, 3]),
        "num_attention_heads": heads,
        "num_key_value_heads": choice.choice([k for k in (1, 2, 3, 6) if heads % k == 0]),
        "max_position_embeddings": 128,
        "tie_word_embeddings": choice.random() < 0.5,
        "initializer_range": choice.choice([0.05, 0.2]),
        "bos_token_id": 1,
        "eos_token_id": choice.choice([2, [2, 3]]),
        "pad_token_id": choice.choice([0, None]),
    }
    if model_type == "mistral":
        shape["sliding_window"] = choice.choice([None, 5, 9])
    if model_type in ("qwen2", "qwen3") and choice.random() < 0.4:
        window = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
        shape |= window
    if model_type in ("llama", "qwen3"):
        shape["attention_bias"] = choice.random() < 0.5
        shape["head_dim"] = choice.choice([8, 16])
    if model_type == "llama":
        shape["mlp_bias"] = choice.random() < 0.5
    if model_type == "gpt2":
        return _gpt2(choice, shape)
    scaling = choice.choice([None, "linear", "dynamic", "llama3", "yarn"])
    if scaling is not None:
        shape["rope_parameters"] = _rope(scaling)
    return shape


def _gpt2(choice: random.Random, shape: dict[str, Any]) -> dict[str, Any]:
    for name in ("intermediate_size", "num_key_value_heads"):
        del shape[name]
    return shape | {
        "n_inner": choice.choice([None, 40]),
        "activation_function": choice.choice(["gelu_new", "gelu", "relu"]),
        "scale_attn_weights": choice.random() < 0.8,
        "scale_attn_by_inverse_layer_idx": choice.random() < 0.3,
        "layer_norm_epsilon": 1e-4,
    }


def _rope(kind: str) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = 16
    return rope


def _models(model_type: str, seed: int, folder: Path) -> tuple[Any, Any]:
    """The same random weights in transformers and here, by way of a checkpoint on disk."""
    choice = random.Random(f"{model_type} {seed}")
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **_shape(choice, model_type))
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    theirs.save_pretrained(folder)
    return theirs, load_model(folder)


def _left_padded(choice: random.Random, vocab: int) -> dict[str, torch.Tensor]:
    rows = [
        [choice.randrange(4, vocab) for _ in range(choice.randint(1, 12))]
        for _ in range(choice.randint(1, 4))
    ]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def _calls(choice: random.Random, vocab: int) -> list[dict[str, Any]]:
    """A greedy and a sampled call with random processors; ends of sequence come in mid-batch."""
    common: dict[str, Any] = {"max_new_tokens": choice.randint(1, 30), "pad_token_id": 0}
    if choice.random() < 0.5:
        common["eos_token_id"] = choice.sample(range(vocab), vocab // 8)
    extras: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[5], [6, 7]]},
        {"min_new_tokens": 4},
        {"min_length": 10},
        {"max_new_tokens": None, "max_length": 40},
        {"suppress_tokens": [4, 8]},
    ]
    sampling: list[dict[str, Any]] = [
        {"temperature": 0.6},
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"typical_p": 0.7},
        {"top_k": 0, "top_p": 0.9, "temperature": 1.7},
        {"num_return_sequences": 2},
        {"epsilon_cutoff": 0.01},
    ]
    greedy = dict(common)
    sampled = dict(common, do_sample=True)
    for extra in choice.sample(extras, choice.randint(0, 3)):
        greedy |= extra
        sampled |= extra
    for extra in choice.sample(sampling, choice.randint(0, 3)):
        sampled |= extra
    return [greedy, sampled]


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize("seed", range(CONFIGS_EACH))
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_same_tokens_and_scores(model_type: str, seed: int, tmp_path: Path) -> None:
    theirs, ours = _models(model_type, seed, tmp_path)
    choice = random.Random(f"calls {model_type} {seed}")
    for call in _calls(choice, theirs.config.vocab_size):
        inputs = _left_padded(choice, theirs.config.vocab_size)
        options = dict(call, return_dict_in_generate=True, output_scores=True, output_logits=True)
        torch.manual_seed(seed)
        expected = theirs.generate(**inputs, **options)
        torch.manual_seed(seed)
        found = ours.generate(**inputs, **options)
        assert found.sequences.tolist() == expected.sequences.tolist(), call
        for ours_step, theirs_step in zip(found.logits, expected.logits, strict=True):
            torch.testing.assert_close(ours_step, theirs_step, atol=1e-4, rtol=1e-4)
        for ours_step, theirs_step in zip(found.scores, expected.scores, strict=True):
            torch.testing.assert_close(ours_step, theirs_step, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("model_type", ["mistral", "gpt2"])
def test_cache_and_chunks_change_nothing(
    model_type: str, cache: str, chunk: int | None, tmp_path: Path
) -> None:
    theirs, ours = _models(model_type, 5, tmp_path)
    inputs = _left_padded(random.Random(5), theirs.config.vocab_size)
    expected = theirs.generate(**inputs, max_new_tokens=25, pad_token_id=0, disable_compile=True)
    found = ours.generate(
        **inputs,
        max_new_tokens=25,
        pad_token_id=0,
        disable_compile=True,
        cache_implementation=cache,
        prefill_chunk_size=chunk,
    )
    assert found.tolist() == expected.tolist()


def test_continued_cache_is_like_the_whole_prompt(tmp_path: Path) -> None:
    theirs, ours = _models("llama", 3, tmp_path)
    prompt = torch.tensor([[5, 9, 11, 4]])
    cache = DynamicCache()
    options: dict[str, Any] = {"max_new_tokens": 6, "eos_token_id": [60], "pad_token_id": 0}
    first = ours.generate(prompt, past_key_values=cache, **options)
    longer = torch.cat((first, torch.tensor([[7, 8]])), dim=1)
    second = ours.generate(longer, past_key_values=cache, **options)
    expected = theirs.generate(longer, **options)
    assert second.tolist() == expected.tolist()


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_hidden_states_and_attentions_equal_the_reference(
    model_type: str, sampled: bool, tmp_path: Path
) -> None:
    theirs, ours = _models(model_type, 21, tmp_path)
    theirs.set_attn_implementation("eager")
    inputs = _left_padded(random.Random(21), theirs.config.vocab_size)
    options: dict[str, Any] = {
        "max_new_tokens": 8,
        "pad_token_id": 0,
        "do_sample": sampled,
        "num_return_sequences": 2 if sampled else 1,
        "return_dict_in_generate": True,
        "output_hidden_states": True,
        "output_attentions": True,
    }
    torch.manual_seed(0)
    expected = theirs.generate(**inputs, **options)
    torch.manual_seed(0)
    found = ours.generate(**inputs, **options)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert list(found.keys()) == list(expected.keys())
    real = inputs["attention_mask"].bool().repeat_interleave(options["num_return_sequences"], 0)
    for step in range(len(expected.hidden_states)):
        # What stands at padding means nothing.
        keep = real if step == 0 else torch.ones(len(real), 1, dtype=torch.bool)
        for ours_layer, theirs_layer in zip(
            found.hidden_states[step], expected.hidden_states[step], strict=True
        ):
            same_layers((ours_layer[keep],), (theirs_layer[keep],))
        for ours_layer, theirs_layer in zip(
            found.attentions[step], expected.attentions[step], strict=True
        ):
            assert ours_layer.shape == theirs_layer.shape
            rows = [layer.transpose(1, 2)[keep] for layer in (ours_layer, theirs_layer)]
            same_layers((rows[0],), (rows[1],))


def test_one_kind_of_inside_alone(tmp_path: Path) -> None:
    _, ours = _models("gpt2", 4, tmp_path)
    prompt = torch.tensor([[5, 9, 11, 4]])
    options: dict[str, Any] = {"max_new_tokens": 3, "min_new_tokens": 3, "pad_token_id": 0}
    plain = ours.generate(prompt, **options)
    for name in ("hidden_states", "attentions"):
        flag = {f"output_{name}": True, "return_dict_in_generate": True}
        found = ours.generate(prompt, **options, **flag)
        assert found.sequences.tolist() == plain.tolist()
        assert set(found.keys()) == {"sequences", name, "past_key_values"}
        assert [layers[0].shape[-2] for layers in found[name]] == [4, 1, 1]
        # A prompt in chunks keeps the pass of the last one, as the reference does.
        found = ours.generate(prompt, **options, **flag, prefill_chunk_size=3)
        assert [layers[0].shape[-2] for layers in found[name]] == [1, 1, 1]
