"""Families whose layers keep states compute what the reference computes, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.families.config import ModelConfig
from tests.families.arch.families import STATES, make
from tests.families.arch.test_families import ROWS, compare, one_thread, tokenizer
from tests.models.same import assert_same

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["one_thread", "tokenizer"]

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("mamba", {"use_bias": True}),
    ("mamba", {"use_conv_bias": False, "tie_word_embeddings": False}),
    ("mamba", {"expand": 3, "conv_kernel": 3, "state_size": 1}),
    ("mamba", {"conv_kernel": 1, "time_step_rank": "auto"}),
    ("falcon_mamba", {"mixer_rms_eps": 1e-2, "use_bias": True}),
    ("falcon_mamba", {"num_hidden_layers": 1, "layer_norm_epsilon": 1e-2}),
    ("mamba2", {"use_bias": True, "n_groups": 1}),
    ("mamba2", {"n_groups": 8, "use_conv_bias": False, "tie_word_embeddings": True}),
    ("mamba2", {"time_step_limit": [0.3, 0.6]}),
    ("mamba2", {"chunk_size": 4, "num_heads": 4, "head_dim": 16, "conv_kernel": 2}),
]


@pytest.mark.parametrize("family", STATES)
def test_a_family_equals_the_reference(
    family: str, tmp_path: Path, tokenizer: asyncgen.Tokenizer
) -> None:
    ours = compare(family, tmp_path, tokenizer)
    assert isinstance(ours, getattr(asyncgen, ours.core.family.class_name))
    ours.save_pretrained(tmp_path / "again")
    again = asyncgen.load_model(tmp_path / "again", dtype="float32")
    ids = torch.tensor(ROWS[:1])
    assert torch.equal(again(ids).logits, ours(ids).logits)
    half = asyncgen.load_model(tmp_path, dtype="bfloat16")
    spread = ours(ids).logits.std()
    assert (half(ids).logits.float() - ours(ids).logits).abs().mean() < 0.05 * spread


@pytest.mark.soak
@pytest.mark.parametrize(("family", "overrides"), VARIANTS)
def test_its_switches_do_too(
    family: str, overrides: dict[str, Any], tmp_path: Path, tokenizer: asyncgen.Tokenizer
) -> None:
    compare(family, tmp_path, tokenizer, **overrides)


@pytest.mark.parametrize("family", STATES)
def test_beams_and_a_text_that_goes_on(family: str, tmp_path: Path) -> None:
    theirs = make(family, tmp_path)
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    ids = torch.tensor(ROWS[:1])
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    generate: Any = ours.generate
    expected = theirs.generate(ids, num_beams=3, eos_token_id=None, **options)
    assert torch.equal(generate(ids, num_beams=3, **options), expected)

    whole = ours(ids)
    first = ours(ids[:, :3])
    then = ours(ids[:, 3:], past_key_values=first.past_key_values)
    assert_same(torch.cat((first.logits, then.logits), dim=1), whole.logits)
    assert then.past_key_values.get_seq_length() == ids.shape[1]
    one, several = (generate(ids, prefill_chunk_size=size, **options) for size in (None, 2))
    assert torch.equal(one, several)
    assert torch.equal(one, generate(ids, use_cache=False, **options))
    repeated = then.past_key_values
    repeated.batch_repeat_interleave(2)
    repeated.batch_select_indices([1])
    assert [len(kept) for kept in repeated[0]] == [1, 1]
    with pytest.raises(InvalidRequestError, match="cannot|does not tell what it was"):
        repeated.crop(2)
    with pytest.raises(InvalidRequestError, match="the batch has 2 rows"):
        ours(ids.repeat(2, 1), past_key_values=repeated)
    with pytest.raises(InvalidRequestError, match="attend to nothing"):
        ours(ids, output_attentions=True)
    keys = asyncgen.StaticCache(config=ours.config, batch_size=1, max_cache_len=9)
    with pytest.raises(InvalidRequestError, match="`past_key_values` is 'StaticCache'"):
        ours(ids, past_key_values=keys)


def test_a_mamba_cache_is_gone_on_from_and_returned(tmp_path: Path) -> None:
    make("mamba", tmp_path)
    model = asyncgen.MambaForCausalLM.from_pretrained(tmp_path, dtype="float32")
    ids = torch.tensor([ROWS[0], ROWS[2][:7]])

    def cache(rows: int = 2, **given: Any) -> asyncgen.MambaCache:
        given = {"device": model.device, "dtype": model.dtype, **given}
        return asyncgen.MambaCache(config=model.config, batch_size=rows, **given)

    mine, whole = cache(), model(ids)
    first = model(ids[:, :4], past_key_values=mine, use_cache=True)
    assert first.past_key_values is mine
    assert mine.get_seq_length() == 4
    then = model(ids[:, 4:], past_key_values=mine)
    assert_same(torch.cat((first.logits, then.logits), dim=1), whole.logits)
    window, state = whole.past_key_values[0]
    assert torch.equal(mine.conv_states[0], window.mT)
    assert torch.equal(mine.ssm_states[0], state[:, :, 0])
    mine.reset()
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    generate: Any = model.generate
    found = generate(ids, past_key_values=mine, **options)
    assert torch.equal(found, generate(ids, **options))
    for wrong in (cache(1), cache(dtype=torch.float16)):
        with pytest.raises(InvalidRequestError, match="`past_key_values`"):
            model(ids, past_key_values=wrong)
    with pytest.raises(InvalidRequestError, match="its number of rows is fixed"):
        mine.batch_repeat_interleave(2)


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        ("mamba", {"hidden_act": "relu"}, "`hidden_act`"),
        ("mamba", {"time_step_rank": "most"}, "`time_step_rank`"),
        ("mamba", {"state_size": 0}, "`state_size`"),
        ("mamba", {"expand": 0}, "`expand`"),
        ("mamba2", {"num_heads": 3}, "`num_heads`"),
        ("mamba2", {"n_groups": 3}, "`n_groups`"),
        ("mamba2", {"conv_kernel": 1000}, "`conv_kernel`"),
        ("mamba2", {"time_step_limit": [1.0, 0.5]}, "`time_step_limit`"),
        ("mamba2", {"time_step_limit": [0.0, "far"]}, "`time_step_limit`"),
        ("mamba2", {"time_step_limit": 3}, "`time_step_limit`"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(
    family: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_hf({"model_type": family, **keys})
