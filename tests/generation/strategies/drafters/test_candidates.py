"""The documented generators of candidates, called by hand as those of transformers are."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError
from tests.cases import for_each
from tests.generation.strategies.pairs import near, pair

reference = pytest.importorskip("transformers.generation")

PROMPT = torch.tensor([[5, 9, 11, 4, 7, 5, 9, 11]])
KINDS = ["AssistedCandidateGenerator", "EarlyExitCandidateGenerator"]
LIMITS = {"max_length": 40, "min_length": 0, "eos_token_id": [2, 60], "pad_token_id": 0}


def test_a_look_up_finds_what_that_of_the_reference_does() -> None:
    chance = random.Random(3)
    found, cut = 0, 0
    for _ in range(250):
        length = chance.randint(1, 14)
        ids = torch.tensor([[chance.randint(0, 3) for _ in range(length)]])
        given: dict[str, Any] = {
            "num_output_tokens": chance.randint(1, 5),
            "max_matching_ngram_size": chance.randint(1, 4),
            "max_length": chance.choice([20, length + 1, length + 2, max(length - 3, 1)]),
            "eos_token_id": chance.choice([None, torch.tensor([3]), torch.tensor([0, 2])]),
        }
        answers = []
        for module in (asyncgen, reference):
            if chance.random() < 0.5 and module is asyncgen or "vocab_size" in given:
                ban = module.NoBadWordsLogitsProcessor([[1], [2, 0]])
                given |= {"logits_processor": module.LogitsProcessorList([ban]), "vocab_size": 4}
            answers.append(module.PromptLookupCandidateGenerator(**given).get_candidates(ids))
        (mine, scores), (yours, _) = answers
        assert scores is None
        assert mine.tolist() == yours.tolist(), (ids, given)
        found += mine.shape[1] > length
        cut += mine.shape[1] > length and "vocab_size" in given
    assert found > 60 and cut > 20


def test_a_look_up_goes_on_with_its_sequence_and_begins_anew_with_another() -> None:
    ours = asyncgen.PromptLookupCandidateGenerator(max_length=99, num_output_tokens=3)
    for row in ([1, 2, 3, 1], [1, 2, 3, 1, 2], [7, 8, 7], [1, 2, 3, 1, 2, 3, 1], [1, 2]):
        ids = torch.tensor([row])
        theirs = reference.PromptLookupCandidateGenerator(max_length=99, num_output_tokens=3)
        assert ours.get_candidates(ids)[0].tolist() == theirs.get_candidates(ids)[0].tolist()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The deciding model and the draft model, each in transformers and here."""
    folder = tmp_path_factory.mktemp("models")
    target = pair(folder / "target", 3)
    return {KINDS[0]: near(target[0], folder / "draft"), KINDS[1]: target}


def generators(
    kind: str, models: dict[str, Any], fields: dict[str, Any], own: dict[str, Any]
) -> list[Any]:
    """What drafts, in transformers and here."""
    made = []
    for module, model in zip((reference, asyncgen), models[kind], strict=True):
        model.generation_config = module.GenerationConfig(**own)
        config = module.GenerationConfig(**LIMITS | fields)
        if kind == KINDS[1]:
            config.assistant_early_exit = 2
        mask = {"attention_mask": torch.ones_like(PROMPT)}
        made.append(getattr(module, kind)(PROMPT, model, config, mask))
    return made


FIXED = {"num_assistant_tokens": 5, "assistant_confidence_threshold": 0.0}


@for_each(
    ("fields", "own", "rounds"),
    [
        ({}, FIXED, 4),
        (
            {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
            {**FIXED, "num_assistant_tokens_schedule": "heuristic"},
            4,
        ),
        ({"do_sample": True, "top_k": 20}, FIXED, 3),
        # The threshold learns here; in the reference it does where scikit-learn is installed.
        ({"do_sample": True, "temperature": 0.7}, {"assistant_confidence_threshold": 0.03}, 1),
        ({"min_length": 16}, {"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.9}, 1),
    ],
)
@for_each("kind", KINDS)
def test_a_loop_of_ones_own_gets_the_candidates_of_the_reference(
    kind: str, fields: dict[str, Any], own: dict[str, Any], rounds: int, models: dict[str, Any]
) -> None:
    theirs, ours = generators(kind, models, fields, own)
    target, ids = models[KINDS[1]][0], PROMPT
    for round_ in range(rounds):
        answers = []
        for each in (theirs, ours):
            torch.manual_seed(round_)
            answers.append(each.get_candidates(ids))
        (yours, their_scores), (mine, our_scores) = answers
        assert mine.tolist() == yours.tolist()
        assert our_scores is not None
        torch.testing.assert_close(our_scores, their_scores, atol=1e-4, rtol=1e-4)
        with torch.no_grad():
            scores = target(yours).logits[:, ids.shape[1] - 1 :]
        right = int((scores[0, :-1].argmax(-1) == yours[0, ids.shape[1] :]).int().cumprod(0).sum())
        ids = torch.cat((ids, scores[:, : right + 1].argmax(-1)), dim=1)
        for each in (theirs, ours):
            each.update_candidate_strategy(ids, scores, right)
        assert ours.num_assistant_tokens == theirs.num_assistant_tokens


def test_nothing_is_proposed_where_one_token_is_left(models: dict[str, Any]) -> None:
    for each in generators(KINDS[0], models, {"max_length": 9}, FIXED):
        whole, scores = each.get_candidates(PROMPT)
        assert whole.tolist() == PROMPT.tolist() and scores is None


def test_what_was_learnt_is_seen_and_can_be_set(models: dict[str, Any]) -> None:
    _, ours = generators(KINDS[0], models, {}, {"num_assistant_tokens": 5})
    assert ours.num_assistant_tokens == 5
    ours.num_assistant_tokens = 2
    ours._drafter.confidence.threshold = 0.0
    whole, scores = ours.get_candidates(PROMPT)
    assert whole.shape == (1, 10) and scores.shape == (1, 2, 97)
    for _ in range(9):
        ours.update_candidate_strategy(whole, None, 1)
        ours.get_candidates(PROMPT)
    assert ours.assistant_generation_config.assistant_confidence_threshold > 0
    assert ours.assistant_model.generation_config.num_assistant_tokens == 5


def test_what_a_generator_cannot_take_is_refused(models: dict[str, Any]) -> None:
    _, ours = models[KINDS[1]]
    config = asyncgen.GenerationConfig(**LIMITS)
    two = PROMPT.repeat(2, 1)
    cases: list[tuple[str, Any]] = [
        ("`input_ids`", lambda: asyncgen.AssistedCandidateGenerator(two, ours, config, {})),
        ("`model_kwargs` is 'pixel_values'", lambda: asyncgen.AssistedCandidateGenerator(
            PROMPT, ours, config, {"pixel_values": 1})),
        ("`assistant_model`", lambda: asyncgen.AssistedCandidateGenerator(
            PROMPT, torch.nn.Linear(1, 1), config, {})),
        ("`assistant_early_exit`", lambda: asyncgen.EarlyExitCandidateGenerator(
            PROMPT, ours, asyncgen.GenerationConfig(assistant_early_exit=9), {})),
        ("`num_output_tokens`", lambda: asyncgen.PromptLookupCandidateGenerator(None, 0)),
        ("`max_matching_ngram_size`", lambda: asyncgen.PromptLookupCandidateGenerator(None, 1, 0)),
        ("`vocab_size`", lambda: asyncgen.PromptLookupCandidateGenerator(
            logits_processor=asyncgen.LogitsProcessorList([asyncgen.MinPLogitsWarper(0.1)]))),
        ("`input_ids`", lambda: asyncgen.PromptLookupCandidateGenerator().get_candidates(two)),
    ]  # fmt: skip
    for named, call in cases:
        with pytest.raises(InvalidRequestError, match=named):
            call()
    with pytest.raises(NotImplementedError):
        asyncgen.CandidateGenerator().get_candidates(PROMPT)
    asyncgen.CandidateGenerator().update_candidate_strategy(PROMPT, None, 0)


def test_an_improbable_token_ends_a_draft_as_in_the_reference() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        ids, scores = torch.randint(0, 7, (1, 5)), torch.randn(1, 7) * 2
        for threshold in (0.0, 0.1, 0.4, 1.0):
            ours = asyncgen.ConfidenceCriteria(threshold)
            theirs = reference.ConfidenceCriteria(threshold)
            expected = theirs(ids, (torch.randn(1, 7), scores))
            assert ours(ids, (torch.randn(1, 7), scores)).tolist() == [expected]
            assert ours(ids, scores).tolist() == [expected]
    two = torch.tensor([[1], [0]]), torch.tensor([[0.0, 9.0], [0.0, 9.0]])
    assert asyncgen.ConfidenceCriteria(0.5)(*two).tolist() == [False, True]
    with pytest.raises(InvalidRequestError, match="`scores`"):
        asyncgen.ConfidenceCriteria(0.5)(two[0], None)
