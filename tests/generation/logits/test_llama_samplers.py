"""Samplers of llama.cpp, against what llama.cpp itself makes of the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.engine.requests.params import resolve_params
from asyncgen.engine.sampling.random_draws import HashDraw
from asyncgen.engine.sampling.sampler import ScoreBatch
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.logits.batched import RowProcessor
from asyncgen.generation.logits.build import build_logits_processors
from asyncgen.generation.logits.dry import (
    DRY,
    DRYLogitsProcessor,
    Repetitions,
    find_breakers,
    matches_of_end,
)
from asyncgen.generation.logits.llama_filters import (
    DynamicTemperatureLogitsWarper,
    TopNSigmaLogitsWarper,
    XTCLogitsWarper,
    exclude_top_choices,
    keep_top_n_sigma,
    scale_by_entropy,
)
from asyncgen.generation.logits.mirostat import MirostatLogitsWarper, tokens_to_keep
from asyncgen.generation.logits.penalties import RepetitionPenaltyLogitsProcessor
from asyncgen.generation.logits.sequence_memory import RecentTokens, SeenTokens
from tests.cases import for_each
from tests.doubles.models import VOCABULARY, byte_tokenizer
from tests.engine.making import request_for, sequence_of

if TYPE_CHECKING:
    from asyncgen.generation.logits.checked_processors import CheckedProcessors

FIXTURES = json.loads((Path(__file__).parents[2] / "fixtures" / "llama_samplers.json").read_text())


def processors(settings: dict[str, Any]) -> CheckedProcessors:
    """Those of a request with these settings; XTC always takes its chance."""
    given = {"do_sample": True, **settings}
    breakers: dict[int, Any] = {}
    for head, *tail in given.pop("breakers", []):
        breakers[head] = (*breakers.get(head, ()), tuple(tail))
    params = resolve_params(given, GenerationConfig(), prompt_length=1, context_length=None)
    return build_logits_processors(
        params.config,
        prompt_length=1,
        eos_token_ids=None,
        device="cpu",
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        arguments={**params.samplers, "chance": lambda *_: 0.0, "dry_breakers": breakers},
    )


def probabilities(scores: torch.Tensor) -> dict[str, float]:
    """Those of the tokens that are left."""
    return {str(token): p for token, p in enumerate(scores.softmax(-1)[0].tolist()) if p > 0}


@for_each("number", range(len(FIXTURES["single"])))
def test_what_is_left_of_logits_is_what_llama_cpp_leaves(number: int) -> None:
    case = FIXTURES["single"][number]
    made = processors(case["settings"])
    left = made(torch.tensor([case["tokens"]]), torch.tensor([case["logits"]]))
    assert probabilities(left) == pytest.approx(case["left"], rel=2e-4, abs=1e-6)


@for_each("number", range(len(FIXTURES["mirostat"])))
def test_mirostat_follows_the_tokens_as_llama_cpp_does(number: int) -> None:
    run = FIXTURES["mirostat"][number]
    made, ids = processors(run["settings"]), [1]
    for step in run["steps"]:
        left = made(torch.tensor([ids]), torch.tensor([step["logits"]]))
        assert probabilities(left) == pytest.approx(step["left"], rel=2e-4, abs=1e-6)
        ids.append(step["token"])


@for_each("window", [1, 3, 7, 40])
def test_a_window_counts_what_counting_its_tokens_anew_gives(window: int) -> None:
    random = torch.Generator().manual_seed(window)
    tokens: list[int] = []
    memory = RecentTokens(window, start=2)
    for _ in range(60):
        action = int(torch.randint(0, 3, (), generator=random))
        if action and tokens:
            memory.pop()
            tokens.pop()
        else:
            new = torch.randint(0, 5, (4,), generator=random).tolist()
            memory.extend(new)
            tokens += new
        first = max(2, len(tokens) - window)
        plain = SeenTokens(tokens=tokens[first:])
        found = dict(zip(memory.token_ids, memory.counts, strict=True))
        assert found == dict(zip(plain.token_ids, plain.counts, strict=True))
        assert len(memory) == len(tokens)


def naive_matches(tokens: list[int]) -> list[int]:
    """Lengths of earlier runs that the end is a copy of, compared token by token."""
    found = [0] * len(tokens)
    for place in range(len(tokens) - 1):
        while (
            found[place] <= place
            and tokens[place - found[place]] == tokens[len(tokens) - 1 - found[place]]
        ):
            found[place] += 1
    return found


@for_each("seed", range(6))
def test_repetitions_are_followed_as_they_would_be_found_anew(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    memory = Repetitions()
    for _ in range(70):
        if tokens and int(torch.randint(0, 4, (), generator=random)) == 0:
            memory.pop()
            tokens.pop()
        else:
            count = 1 + int(torch.randint(0, 2, (), generator=random))
            new = torch.randint(0, 3, (count,), generator=random).tolist()
            memory.extend(new)
            tokens += new
        assert memory.lengths.tolist() == naive_matches(tokens) == matches_of_end(tokens)
        assert memory.ids.tolist() == tokens


@for_each("seed", range(6))
def test_the_last_breaker_is_the_one_that_a_search_from_the_end_finds(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    breakers = {1: ((2,), (2, 3)), 3: ((3,),), 4: ((),)}
    tokens: list[int] = []
    memory = Repetitions(breakers)
    for _ in range(120):
        if tokens and int(torch.randint(0, 3, (), generator=random)) == 0:
            memory.pop()
            tokens.pop()
        else:
            tokens.append(int(torch.randint(1, 9, (), generator=random)))
            memory.extend(tokens[-1:])
        met = [
            (place, len(tail))
            for place, token in enumerate(tokens)
            for tail in breakers.get(token, ())
            if tuple(tokens[place + 1 : place + 1 + len(tail)]) == tail
        ]
        assert memory.last_break == max(met, default=(-1, 0))


def test_breakers_are_found_within_tokens_and_across_them() -> None:
    tokenizer = byte_tokenizer()
    a, b, c = (ord(letter) for letter in "abc")
    assert find_breakers(tokenizer, ["a"], 256) == {a: ((),)}
    assert find_breakers(tokenizer, ["abc", "ab"], 256) == {a: ((b, c), (b,))}
    assert find_breakers(tokenizer, ["\u00e9!"], 256) == {0xC3: ((0xA9, ord("!")),)}
    assert find_breakers(tokenizer, [], 256) == {}
    breakers = {a: ((b, c),)}
    dry, seen = DRY(1.0, 2.0, 1, None, breakers), Repetitions(breakers)
    seen.extend([5, 6, 7, a, b, c, 5, 6])
    assert dry.penalties(seen) == {7: 2.0}  # the run of two ends at the breaker
    seen.extend([7, a, b, c, 5, 6])
    assert dry.penalties(seen) == {7: 2.0}
    whole = DRY(1.0, 2.0, 1)
    seen = Repetitions()
    seen.extend([5, 6, 7, a, b, c] * 2 + [5, 6])
    assert whole.penalties(seen) == {7: 2.0**7}


def test_a_breaker_itself_is_never_penalised_and_no_penalty_overflows() -> None:
    seen = Repetitions({1: ((),)})
    seen.extend([1, 2] * 400)
    assert DRY(1.0, 2.0, 1, None, {1: ((),)}).penalties(seen) == {}
    seen = Repetitions()
    seen.extend([1, 2] * 400)
    (penalty,) = DRY(1.0, 3.0, 1).penalties(seen).values()
    assert penalty < torch.finfo(torch.float32).max


def test_equally_likely_top_choices_leave_one() -> None:
    left = exclude_top_choices(torch.tensor([[1.0, 1.0, 1.0, -20.0]]), 0.1)
    assert left.tolist() == [[-torch.inf, -torch.inf, 1.0, -20.0]]
    alone = torch.tensor([[9.0, 0.0, 0.0]])
    assert torch.equal(exclude_top_choices(alone, 0.5), alone)  # a single top choice stays
    banned = torch.tensor([[-torch.inf, 2.0, 2.0]])
    assert exclude_top_choices(banned, 0.0).tolist() == [[-torch.inf, -torch.inf, 2.0]]


def test_xtc_takes_its_chance_by_row_and_position_alone() -> None:
    draw = HashDraw(5)
    warper = XTCLogitsWarper(0.3, 0.1, draw.chance)
    due = [[warper.is_due(position, row) for position in range(2000)] for row in range(2)]
    assert due[0] != due[1]
    assert all(0.25 < sum(each) / len(each) < 0.35 for each in due)
    assert [warper.of_row(1).is_due(position) for position in range(2000)] == due[1]
    assert not XTCLogitsWarper(1.0, 0.6, draw.chance).is_due(3)


def test_in_a_batch_xtc_changes_the_rows_where_it_is_due_and_no_other() -> None:
    given = {"xtc_probability": 0.5, "xtc_threshold": 0.001, "seed": 9}
    rows = [
        sequence_of(request_for([1, 2, 3], **kind)[0]) for kind in (given, {}, {**given, "seed": 4})
    ]
    number = [type(each) for each in rows[0].processors].index(XTCLogitsWarper)
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    changed = []
    for _ in range(12):
        scores = ScoreBatch(logits, [*rows], own=True)
        parts = [RowProcessor(row, rows[row].processors[number]) for row in (0, 2)]
        batched = XTCLogitsWarper.definition.batched
        assert batched is not None
        batched(parts, scores)(scores)
        for row, processor in parts:
            own = logits[row : row + 1]
            alone = processor(torch.tensor([rows[row].tokens]), own)
            assert torch.equal(scores.values[row : row + 1], alone)
            changed.append(not torch.equal(alone, own))
        assert torch.equal(scores.values[1], logits[1])
        for each in rows:
            each.tokens.append(5)
    assert 4 < sum(changed) < 20


def test_temperatures_at_their_edges() -> None:
    scores = torch.tensor([[2.0, 1.0, -torch.inf], [0.0, -torch.inf, -torch.inf]])
    plain = scale_by_entropy(scores[:1], (0.5, 0.0, 1.0)).softmax(-1)
    assert torch.allclose(plain, (scores[:1] / 0.5).softmax(-1))
    # One token is left: nothing to scale, and no NaN.
    assert scale_by_entropy(scores[1:], (0.5, 0.5, 1.0)).tolist() == [[0, -torch.inf, -torch.inf]]
    sure = torch.tensor([[500.0, 0.0, 500.0 - 400]])
    assert scale_by_entropy(sure, (0.5, 2.0, 1.0)).softmax(-1)[0, 0] == 1
    even = scale_by_entropy(torch.tensor([[1.0, 1.0]]), (1.0, 0.5, 1.0))
    assert even.softmax(-1).tolist() == [[0.5, 0.5]]


def test_sigmas_count_what_is_not_banned() -> None:
    scores = torch.tensor([[3.0, 1.0, -1.0, -torch.inf, -torch.inf]])
    kept = keep_top_n_sigma(scores, 1.5)
    assert kept.isfinite().tolist() == [[True, True, False, False, False]]
    assert keep_top_n_sigma(torch.zeros(1, 4), 0.1).tolist() == [[0.0] * 4]


def test_mirostat_reads_a_token_once_and_skips_what_it_had_banned() -> None:
    warper, scores = MirostatLogitsWarper(2, 1.0, 0.5), torch.tensor([[2.0, 1.0, -9.0]])
    ids = torch.tensor([[1, 2, 3]])
    first = warper(ids, scores)
    assert torch.equal(warper(ids, scores), first)  # the same step once more
    assert warper.mu == [2.0]
    longer = torch.tensor([[1, 2, 3, 1]])
    warper(longer, scores)
    warper(longer, scores)
    surprise = -first.log_softmax(-1)[0, 1].item() / 0.6931471805599453
    assert warper.mu == [pytest.approx(2.0 - 0.5 * (surprise - 1.0))]
    before = warper.mu
    warper(torch.tensor([[1, 2, 3, 1, 2]]), scores)  # token 2 was not among those that stayed
    assert warper.mu == before
    assert warper.fresh().mu == []


def test_mirostat_1_keeps_some_tokens_whatever_the_scores() -> None:
    flat, sure = torch.zeros(50), torch.full((50,), -torch.inf)
    sure[3] = 1.0
    assert tokens_to_keep(flat, 3.0) == 50
    assert tokens_to_keep(sure, 3.0) == 1
    assert tokens_to_keep(torch.randn(50) * 1e4, 1e9) == 50
    harmonic = -torch.arange(1, 51).float().log()  # an exponent of 1
    assert 1 <= tokens_to_keep(harmonic, 2.0) <= 50


@for_each(
    "make",
    [
        lambda: TopNSigmaLogitsWarper(0.0),
        lambda: XTCLogitsWarper(1.5, 0.1, lambda *_: 0.0),
        lambda: XTCLogitsWarper(0.5, -0.1, lambda *_: 0.0),
        lambda: DynamicTemperatureLogitsWarper(0.0),
        lambda: DynamicTemperatureLogitsWarper(1.0, -1.0),
        lambda: DRYLogitsProcessor(-1.0),
        lambda: DRYLogitsProcessor(1.0, 0.9),
        lambda: DRYLogitsProcessor(1.0, allowed_length=0),
        lambda: DRYLogitsProcessor(1.0, last_n=-2),
        lambda: MirostatLogitsWarper(3),
        lambda: MirostatLogitsWarper(2, float("nan")),
    ],
)
def test_settings_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(InvalidRequestError):
        make()


def test_a_window_of_a_penalty_is_that_of_its_last_tokens() -> None:
    scores, ids = torch.ones(1, 9), torch.tensor([[1, 2, 3, 4, 3]])
    made = RepetitionPenaltyLogitsProcessor(2.0, last_n=2)
    assert made(ids, scores).tolist() == [[1, 1, 1, 0.5, 0.5, 1, 1, 1, 1]]
    assert torch.equal(RepetitionPenaltyLogitsProcessor(2.0, last_n=0)(ids, scores), scores)
