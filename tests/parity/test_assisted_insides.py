"""Hidden states and attentions of assisted generation: one tuple a token, as without drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.generation.alike import same_layers
from tests.generation.strategies.pairs import load_seq2seq, near, pair
from tests.parity import test_seq2seq

if TYPE_CHECKING:
    from pathlib import Path

ALL: dict[str, Any] = dict.fromkeys(
    "return_dict_in_generate output_scores output_logits output_hidden_states "
    "output_attentions".split(),
    True,
)
PROMPT = [5, 9, 11, 4, 7, 5, 9, 11]
WAYS = ("assistant", "lookup", "early exit")


def draft(way: str, theirs: Any, folder: Path, **load: Any) -> tuple[dict[str, Any], ...]:
    """Arguments that make transformers, and us, draft."""
    if way == "assistant":
        other, ours = near(theirs, folder, **load)
        return {"assistant_model": other}, {"assistant_model": ours}
    shared = {"prompt_lookup_num_tokens": 3} if way == "lookup" else {"assistant_early_exit": 2}
    return shared, shared


def same_steps(found: Any, expected: Any, names: list[str]) -> None:
    """Compare tuples of tuples by token and layer."""
    for name in names:
        assert len(found[name]) == len(expected[name]), name
        for one, other in zip(found[name], expected[name], strict=True):
            assert [layer.shape for layer in one] == [layer.shape for layer in other], name
            same_layers(one, other)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("way", WAYS)
def test_they_are_those_of_greedy_decoding(way: str, chunk: int | None, tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path / "target", 3)
    theirs.set_attn_implementation("eager")
    ids = torch.tensor([PROMPT])
    reference, options = draft(way, theirs, tmp_path / "draft")
    call = {"max_new_tokens": 14, **ALL}
    expected = theirs.generate(ids, **call, prefill_chunk_size=chunk)
    found = ours.generate(ids, **call, **options, prefill_chunk_size=chunk)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert list(found.keys()) == list(expected.keys())
    same_steps(found, expected, ["hidden_states", "attentions"])
    if chunk is None:
        # The reference's tuples are nested alike. Their values are not compared: those of the
        # first draft it reads from the beginning of the prompt.
        drafted = theirs.generate(ids, **call, **reference)
        for name in ("hidden_states", "attentions"):
            shapes = [[layer.shape for layer in step] for step in drafted[name]]
            assert [[layer.shape for layer in step] for step in found[name]] == shapes


@pytest.mark.parametrize("way", WAYS[:2])
def test_with_an_encoder(way: str, tmp_path: Path) -> None:
    theirs, ours = test_seq2seq.models(3, tmp_path / "target")
    prompt = {name: value[:1] for name, value in test_seq2seq.inputs(3).items()}
    _, options = draft(way, theirs, tmp_path / "draft", load=load_seq2seq)
    call = {"max_new_tokens": 14, **prompt, **ALL}
    expected = theirs.generate(**call)
    found = ours.generate(**call, **options)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert list(found.keys()) == list(expected.keys())
    same_steps(found, expected, ["decoder_hidden_states", "decoder_attentions", "cross_attentions"])
    for name in ("encoder_hidden_states", "encoder_attentions"):
        same_layers(found[name], expected[name])


def test_sampled_drafts_leave_one_tuple_a_token(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path / "target", 1)
    _, options = draft("assistant", theirs, tmp_path / "draft")
    torch.manual_seed(0)
    ids = torch.tensor([PROMPT])
    found = ours.generate(ids, max_new_tokens=12, do_sample=True, **ALL, **options)
    new = found.sequences.shape[1] - len(PROMPT)
    for name in ("scores", "logits", "hidden_states", "attentions"):
        assert len(found[name]) == new
    # The same sequence read at once has the same states.
    whole = ours(found.sequences[:, :-1], output_hidden_states=True)
    joined = torch.cat([step[-1] for step in found.hidden_states], dim=1)
    torch.testing.assert_close(joined, whole.hidden_states[-1], atol=1e-4, rtol=1e-4)
