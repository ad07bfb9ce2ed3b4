"""A model with two stacks gives the tokens that transformers gives, at both doors."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.reference.load_model import load_model
from tests.cases import some
from tests.generation.alike import same_layers

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

VOCABULARY = 60


def models(seed: int, folder: Path, kind: str = "T5", **overrides: Any) -> tuple[Any, Any]:
    """Make the same random T5 or mT5 in transformers and here, by way of a checkpoint on disk."""
    choice = random.Random(seed)
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "d_model": choice.choice([16, 24]),
        "d_kv": choice.choice([4, 5, 8]),
        "d_ff": 40,
        "num_layers": choice.choice([2, 3]),
        "num_decoder_layers": choice.choice([None, 1, 2]),
        "num_heads": choice.choice([2, 4]),
        "decoder_start_token_id": 0,
        "tie_word_embeddings": choice.random() < 0.5,
        "feed_forward_proj": choice.choice(["relu", "gated-gelu", "gated-silu"]),
        "relative_attention_num_buckets": choice.choice([8, 32]),
        "relative_attention_max_distance": choice.choice([20, 128]),
        "initializer_factor": 1.2,
    }
    config = getattr(transformers, f"{kind}Config")(**(shape | overrides))
    theirs = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    theirs.set_attn_implementation("eager")
    theirs.save_pretrained(folder)
    return theirs, load_model(folder, progress=False)


def inputs(seed: int, rows: int = 3) -> dict[str, torch.Tensor]:
    """Rows of several lengths, padded on either side."""
    choice = random.Random(seed)
    ids = torch.randint(2, VOCABULARY, (rows, 9), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row in range(rows):
        pads = choice.randrange(8)
        if choice.random() < 0.5:
            mask[row, 9 - pads :] = 0
        else:
            mask[row, :pads] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


CALLS: list[dict[str, Any]] = [
    {},
    {"do_sample": True},
    {"do_sample": True, "num_return_sequences": 2, "top_k": 7, "temperature": 1.5},
    {"decoder_input_ids": torch.tensor([[3, 4, 5], [6, 7, 8], [0, 1, 9]])},
    {"decoder_start_token_id": [3, 4, 5]},
    {"forced_bos_token_id": 9, "forced_eos_token_id": 1, "repetition_penalty": 1.4},
    {"min_new_tokens": 9, "no_repeat_ngram_size": 2, "do_sample": True, "top_p": 0.9},
    {"max_new_tokens": None, "max_length": 12, "eos_token_id": [5, 9, 20, 33, 41]},
    {"encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2},
    {
        "encoder_repetition_penalty": 0.6,
        "encoder_no_repeat_ngram_size": 1,
        "do_sample": True,
        "num_return_sequences": 2,
    },
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: "-".join(call) or "greedy")
@pytest.mark.parametrize("seed", some(range(3), 1))
def test_same_tokens_scores_and_insides(seed: int, call: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = models(seed, tmp_path)
    options = {"max_new_tokens": 25, **inputs(seed), **call} | dict.fromkeys(
        "return_dict_in_generate output_scores output_logits output_hidden_states "
        "output_attentions".split(),
        True,
    )
    torch.manual_seed(seed)
    expected = theirs.generate(**options)
    torch.manual_seed(seed)
    found = ours.generate(**options)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert list(found.keys()) == list(expected.keys())
    same_layers(tuple(found.scores), tuple(expected.scores))
    same_layers(tuple(found.logits), tuple(expected.logits))
    for name in ("encoder_hidden_states", "encoder_attentions"):
        same_layers(found[name], expected[name])
    for name in ("decoder_hidden_states", "decoder_attentions", "cross_attentions"):
        for ours_step, theirs_step in zip(found[name], expected[name], strict=True):
            same_layers(ours_step, theirs_step)


@pytest.mark.parametrize("padded", [False, True])
def test_padded_decoder_prompts(padded: bool, tmp_path: Path) -> None:
    theirs, ours = models(7, tmp_path)
    options = dict(
        inputs(7),
        decoder_input_ids=torch.tensor([[0, 3, 4, 5], [0, 0, 0, 8], [0, 0, 7, 9]]),
        max_new_tokens=12,
    )
    if padded:
        options["decoder_attention_mask"] = torch.tensor([[1] * 4, [0, 0, 1, 1], [0, 1, 1, 1]])
    assert ours.generate(**options).tolist() == theirs.generate(**options).tolist()


@pytest.mark.parametrize("given", ["object", "tuple", "states"])
@pytest.mark.parametrize("samples", [1, 2])
def test_encoder_outputs_are_not_computed_again(
    given: str, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = models(1, tmp_path)
    prompt = inputs(1)
    options: dict[str, Any] = {"max_new_tokens": 9}
    if samples > 1:
        options |= {"do_sample": True, "num_return_sequences": samples}
    torch.manual_seed(0)
    expected = ours.generate(**prompt, **options)
    outputs = ours.get_encoder()(**prompt)
    monkeypatch.setattr(ours.core, "encode", None)
    passed = {"object": outputs, "tuple": outputs.to_tuple(), "states": outputs[0]}[given]
    torch.manual_seed(0)
    found = ours.generate(
        encoder_outputs=passed, attention_mask=prompt["attention_mask"], **options
    )
    assert found.tolist() == expected.tolist()


def test_the_encoder_runs_once_for_all_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = models(2, tmp_path)
    rows: list[int] = []
    encode = ours.core.encode

    def counted(embeddings: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        rows.append(embeddings.shape[0])
        return encode(embeddings, *args, **kwargs)

    monkeypatch.setattr(ours.core, "encode", counted)
    ours.generate(**inputs(2), do_sample=True, num_return_sequences=4, max_new_tokens=6)
    assert rows == [3]


def test_a_static_cache_changes_nothing(tmp_path: Path) -> None:
    _, ours = models(3, tmp_path)
    expected = ours.generate(**inputs(3), max_new_tokens=70)
    found = ours.generate(**inputs(3), max_new_tokens=70, cache_implementation="static")
    assert found.tolist() == expected.tolist()


def test_a_quantised_cache_is_refused_as_by_the_reference(tmp_path: Path) -> None:
    theirs, ours = models(3, tmp_path)
    with pytest.raises(ValueError, match="does not support the quantized cache"):
        theirs.generate(**inputs(3), max_new_tokens=7, cache_implementation="quantized")
    with pytest.raises(ValueError, match="`cache_implementation` is .*encoder"):
        ours.generate(**inputs(3), max_new_tokens=7, cache_implementation="quantized")


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_decoder_prompt_in_chunks_changes_nothing(chunk: int, tmp_path: Path) -> None:
    _, ours = models(3, tmp_path)
    options = dict(inputs(3), decoder_input_ids=torch.randint(2, 60, (3, 7)), max_new_tokens=9)
    expected = ours.generate(**options)
    assert ours.generate(**options, prefill_chunk_size=chunk).tolist() == expected.tolist()


@pytest.mark.parametrize("pair", [False, True])
def test_a_cache_that_is_passed_on_continues(pair: bool, tmp_path: Path) -> None:
    theirs, ours = models(4, tmp_path)
    prompt = inputs(4)
    cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache()) if pair else None
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6}
    first = ours.generate(**prompt, **options, past_key_values=cache, return_dict_in_generate=True)
    longer = torch.cat((first.sequences, torch.tensor([[5, 6], [7, 8], [9, 10]])), dim=1)
    second = ours.generate(
        **prompt, **options, decoder_input_ids=longer, past_key_values=first.past_key_values
    )
    expected = theirs.generate(**prompt, **options, decoder_input_ids=longer)
    assert second.tolist() == expected.tolist()


def test_the_reordered_cache_goes_on_as_other_rows(tmp_path: Path) -> None:
    _, ours = models(5, tmp_path)
    prompt = inputs(5)
    start = torch.tensor([[0], [0], [0]])
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    outputs = ours(**prompt, decoder_input_ids=start, past_key_values=cache)
    cache.batch_repeat_interleave(2)
    rows = torch.tensor([1, 0, 3, 2, 5, 4])
    cache.reorder_cache(rows)
    tokens = torch.tensor([[3], [4], [5], [6], [7], [8]])
    found = ours(
        encoder_outputs=(outputs.encoder_last_hidden_state,),
        attention_mask=prompt["attention_mask"],
        decoder_input_ids=tokens,
        past_key_values=cache,
    )
    for row in range(6):
        alone = {name: value[row // 2 : row // 2 + 1] for name, value in prompt.items()}
        ids = torch.cat((start[:1], tokens[row : row + 1]), dim=1)
        expected = ours(**alone, decoder_input_ids=ids).logits[0, -1]
        torch.testing.assert_close(found.logits[row, -1], expected, atol=1e-5, rtol=1e-4)


def test_a_forward_pass_equals_the_reference(tmp_path: Path) -> None:
    theirs, ours = models(6, tmp_path)
    labels = torch.tensor([[5, 6, 1], [7, 1, -100], [8, 9, 10]])
    options = dict(inputs(6), labels=labels, output_hidden_states=True, output_attentions=True)
    with torch.no_grad():
        expected = theirs(**options)
    found = ours(**options)
    assert set(found.keys()) == set(expected.keys())
    for name in expected:
        if name == "past_key_values":
            continue
        ours_part, theirs_part = found[name], expected[name]
        if isinstance(theirs_part, torch.Tensor):
            ours_part, theirs_part = (ours_part,), (theirs_part,)
        same_layers(ours_part, theirs_part)


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"decoder_start_token_id": [3]}, "length 3 but got 1"),
    ({"decoder_input_ids": torch.tensor([[0]])}, "decoder_input_ids"),
    ({"decoder_input_ids": torch.tensor([[0], [0], [99]])}, "decoder_input_ids"),
    ({"encoder_outputs": "states"}, "encoder_outputs"),
    ({"encoder_outputs": torch.zeros(3, 9, 5)}, "encoder_outputs"),
    ({"bogus": 1}, "bogus"),
]


@pytest.mark.parametrize(("arguments", "named"), ARGUMENTS)
def test_bad_arguments_are_named(arguments: dict[str, Any], named: str, tmp_path: Path) -> None:
    _, ours = models(0, tmp_path)
    with pytest.raises(ValueError, match=named):
        ours.generate(**inputs(0), **arguments)


def test_a_decoder_needs_a_first_token(tmp_path: Path) -> None:
    _, ours = models(0, tmp_path, decoder_start_token_id=None)
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        ours.generate(**inputs(0))
    with pytest.raises(ValueError, match="bos_token_id"):
        ours.generate(decoder_start_token_id=0)
