"""Pick the next token of every row of the shared batch, each row with its own parameters.

The scores of a step pass stages, each of which runs one kind of processor over all rows that have
it; a processor without such a form runs row by row in its stage. A row gets bit for bit the token
that it gets alone. The sampler knows logits and rows; not the model, nor what becomes of a token.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from asyncgen.engine.sampling.logprobs import RawLogprobs, raw_logprobs
from asyncgen.engine.sampling.random_draws import HashDraws, argmax
from asyncgen.engine.sampling.shortlist import Shortlist, has_shortlist, plan_row
from asyncgen.generation.logits.batched import RowProcessor
from asyncgen.generation.logits.checked_processors import raise_named
from asyncgen.generation.strategies.token_by_token import most_probable, require_finite
from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.transfer import Readback, to_device
from asyncgen.runtime.user_code import drawing_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from asyncgen.engine.sampling.random_draws import HashDraw
    from asyncgen.engine.sampling.shortlist import RankedProcessor, RowPlan
    from asyncgen.generation.logits.checked_processors import CheckedProcessors
    from asyncgen.runtime.user_code import UserDraws


class SampledRow(Protocol):
    """Sequence, as the sampler sees it.

    Attributes:
        index: Number of the sequence in its request.
        tokens: Prompt and generated tokens.
        processors: Logits processors, in order.
        passed: For each of them, whether the user passed it as an object.
        plan: Way from its logits to a token; made at its first step.
        draw: Source of its random draws.
        is_greedy: Whether the likeliest token is taken, and nothing drawn.
        top_logprobs: Alternatives to report with a token; None where no log-probabilities are
            wanted.
        needs_scores: Whether its stopping criteria read processed scores.
    """

    index: int
    tokens: list[int]
    processors: CheckedProcessors
    passed: list[bool]
    plan: RowPlan | None
    draw: HashDraw
    is_greedy: bool
    top_logprobs: int | None
    needs_scores: bool

    @property
    def user_draws(self) -> UserDraws | None:
        """Random numbers of the user's code; ``None`` where it has no seed."""

    def input_ids(self, device: torch.device) -> Tensor:
        """Return the tokens so far, int64 [1, T]."""


@dataclass(slots=True)
class Sampled:
    """Tokens of one step.

    Attributes:
        token_ids: The token of each row; None where the row failed.
        failures: Row number and error of the rows that failed, alone.
        logprobs: Row number and log-probabilities of the rows that asked for them.
        scores: Row number and processed scores, float32 [1, V], of the rows whose stopping
            criteria read them.
    """

    token_ids: list[int | None]
    failures: dict[int, Exception] = field(default_factory=dict)
    logprobs: dict[int, RawLogprobs] = field(default_factory=dict)
    scores: dict[int, Tensor] = field(default_factory=dict)


class BatchSampler:
    """Sampler of the shared batch."""

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        """Prepare what all steps share.

        Args:
            vocab_size: V of the logits.
            device: Device of the logits.
        """
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.plan: BatchPlan | None = None  # of the rows of the last step
        self._draws = HashDraws(vocab_size, self.device)
        self._can_list = has_shortlist(vocab_size, self.device)

    @torch.no_grad()
    def sample(self, logits: Tensor, rows: Sequence[SampledRow]) -> Sampled:
        """Pick one token for each row.

        Args:
            logits: Raw logits, [R, V] of any floating dtype; not modified.
            rows: The row of each, in order.
        """
        if not rows:
            return Sampled([])
        scores, plan = self._process(logits, rows)
        if len(plan.greedy) == len(rows) and logits.device.type == "cpu":
            # Logits without processors need no copy in float32.
            best, tokens = argmax(scores.values if plan.stages else logits)
            return self._conclude(scores, plan, zip(tokens.tolist(), best.tolist(), strict=True))
        # The one synchronisation of a step.
        return self._conclude(scores, plan, self._pick(scores, plan).T.tolist())

    @torch.no_grad()
    def start(self, logits: Tensor, rows: Sequence[SampledRow]) -> Picking:
        """Begin to `sample` without waiting for the device; `finish` waits.

        Args:
            logits: As of `sample`; kept until the tokens are read.
            rows: At least one.
        """
        scores, plan = self._process(logits, rows)
        pairs = self._pick(scores, plan)
        is_final = not (plan.needs_host or scores.failures or scores.apart)
        return Picking(scores, plan, pairs, Readback(pairs), is_final)

    @torch.no_grad()
    def finish(self, picking: Picking) -> Sampled:
        """Wait for the tokens, and return the same as `sample`."""
        return self._conclude(picking.scores, picking.plan, picking.wait())

    def _process(self, logits: Tensor, rows: Sequence[SampledRow]) -> tuple[ScoreBatch, BatchPlan]:
        """Run the processors; if a form for many rows raises, run each processor on its row."""
        rows = list(rows)
        for one_by_one in (False, True):
            try:
                plan = self.plan
                if one_by_one or plan is None or plan.rows != rows:  # compared by identity
                    planned = ScoreBatch(logits, rows, own=False)
                    plan = BatchPlan(planned, can_list=self._can_list, one_by_one=one_by_one)
                    self.plan = plan
                scores = ScoreBatch(logits, rows, own=bool(plan.stages))
                for stage in plan.stages:
                    stage(scores)
                made = scores.values
                if made.shape != logits.shape or not made.is_floating_point():
                    raise TypeError(f"a processor made scores {[*made.shape]} of {made.dtype}")
                return scores, plan
            except BaseException as error:
                if one_by_one:
                    raise
                request_failure(error)  # the second try finds the row that fails
        raise AssertionError

    def _pick(self, scores: ScoreBatch, plan: BatchPlan) -> Tensor:
        """Pick from processed scores: token and score of each row, float64 [2, R].

        A score that is not finite is that of a row without a token to pick.
        """
        pairs = None
        for way, numbers, index in plan.ways:
            some = scores.values if index is None else scores.values.index_select(0, index)
            if way == "greedy":
                best, tokens = argmax(some)
            else:
                rows = [scores.rows[number] for number in numbers]
                keys = self._draws.keys([(row.draw, row.index, len(row.tokens)) for row in rows])
                if way == "drawn":
                    tokens, best = self._draws(some, keys)
                else:
                    tokens, best = plan.shortlist.draw(some, keys, self._draws)
            found = torch.stack((tokens.double(), best.double()))  # float64 holds every token id
            if index is None:
                return found
            if pairs is None:
                pairs = found.new_empty(2, len(scores.rows))
            pairs.index_copy_(1, index, found)
        assert pairs is not None
        return pairs

    def _conclude(
        self, scores: ScoreBatch, plan: BatchPlan, picked: Iterable[Iterable[float]]
    ) -> Sampled:
        """Collect the tokens and the failures of a step."""
        rows = scores.rows
        sampled = Sampled([None] * len(rows))
        failures, apart, token_ids = scores.failures, scores.apart, sampled.token_ids
        sampled.failures = failures
        for number, (token, height) in enumerate(picked):
            if number in failures:
                continue
            if number in apart:
                with scores.guarded(number):
                    token_ids[number] = _pick_apart(rows[number], apart[number])
            elif math.isfinite(height):
                token_ids[number] = int(token)
            else:
                with scores.guarded(number):
                    _raise_failure(rows[number], scores.raw(number), height)
        for number in plan.needs_scores:
            if number not in failures:
                # A copy, since criteria of users may keep their scores, or write to them.
                own = apart[number] if number in apart else scores.values[number : number + 1]
                sampled.scores[number] = own.clone()
        if plan.wants_logprobs:
            _add_logprobs(sampled, scores, plan.wants_logprobs)
        return sampled


def _pick_apart(row: SampledRow, scores: Tensor) -> int:
    """Pick for a row that left the batch, from scores [1, V] in a dtype of its own."""
    try:
        if row.is_greedy:
            return int(most_probable(scores, len(row.tokens)))
        return int(row.draw.draw_row(row.index, scores[0], len(row.tokens)))
    except FloatingPointError as error:
        raise_named(row.processors, error)


def _raise_failure(row: SampledRow, logits: Tensor, best: float) -> NoReturn:
    """Raise the error of a row without a token to pick; it names the processor behind it.

    Args:
        row: The row.
        logits: Its raw logits, float32 [1, V].
        best: Its highest processed score, which is not finite.
    """
    if row.processors:
        row.processors.begin(row.input_ids(logits.device), logits)
    try:
        require_finite(torch.tensor([best], dtype=torch.float32, device="cpu"), len(row.tokens))
    except FloatingPointError as error:
        raise_named(row.processors, error)
    raise AssertionError(best)


def _add_logprobs(sampled: Sampled, scores: ScoreBatch, numbers: list[int]) -> None:
    """Add log-probabilities of the raw distribution for some rows."""
    asking = [
        (number, token, scores.rows[number].top_logprobs)
        for number in numbers
        if (token := sampled.token_ids[number]) is not None
    ]
    if asking:
        rows, tokens, top = map(list, zip(*asking, strict=True))
        found = raw_logprobs(scores.logits[rows].float(), tokens, top)
        sampled.logprobs = dict(zip(rows, found, strict=True))


@dataclass(slots=True)
class Picking:
    """Tokens of a step that the device is still picking.

    Attributes:
        scores: Scores, as far as they were processed, and the raw logits.
        plan: Plan of the rows.
        pairs: Tokens and their scores, float64 [2, R].
        back: The same on their way to the host.
        is_final: Whether the tokens on the device are final; if not, `BatchSampler.finish` has
            work to do for some row before its token is known.
    """

    scores: ScoreBatch
    plan: BatchPlan
    pairs: Tensor
    back: Readback
    is_final: bool

    def tokens(self) -> Tensor:
        """Return ids on the device, int64 [R]; rows that will fail have some valid id."""
        return self.pairs[0].clamp(0, self.scores.size - 1).long()

    def wait(self) -> list[list[float]]:
        """Wait for the token of each row, and its score."""
        pairs: list[list[float]] = self.back.wait().T.tolist()
        return pairs


class ScoreBatch:
    """Scores of all rows of a step, and the rows that failed.

    Attributes:
        logits: Raw logits, [R, V].
        rows: The row of each.
        failures: Row number and error of rows that failed; their scores mean nothing.
        apart: Row number and processed scores [1, V] of rows whose processors changed the dtype.
        size: V.
    """

    def __init__(self, logits: Tensor, rows: list[SampledRow], *, own: bool) -> None:
        """Begin a step.

        Args:
            logits: Raw logits, [R, V] of any floating dtype; not modified.
            rows: The row of each, in order.
            own: Whether ``values`` will be written to.
        """
        self.logits = logits
        self.rows = rows
        self._own = own
        self._values: Tensor | None = None
        self.failures: dict[int, Exception] = {}
        self.apart: dict[int, Tensor] = {}
        self.size = logits.shape[1]

    @property
    def values(self) -> Tensor:
        """Scores as far as they are processed, float32 [R, V]; made at the first use.

        They may be written to in place if the step has a copy of its own.
        """
        if self._values is None:
            values = self.logits.float().contiguous()
            # A change of dtype has made a copy already.
            self._values = values.clone() if self._own and values is self.logits else values
        return self._values

    @values.setter
    def values(self, values: Tensor) -> None:
        self._values = values

    @property
    def flat(self) -> Tensor:
        """The scores in one dimension: token t of row r at ``r * V + t``."""
        return self.values.view(-1)

    def raw(self, row: int) -> Tensor:
        """Return the raw logits of one row, float32 [1, V]."""
        return self.logits[row : row + 1].float()

    def tensor(self, numbers: list[Any], dtype: torch.dtype = torch.int64) -> Tensor:
        """Make a tensor on the device of the scores."""
        made = torch.tensor(numbers, dtype=dtype, device="cpu")
        return made if self.logits.device.type == "cpu" else to_device(made, self.logits.device)

    @contextmanager
    def guarded(self, row: int) -> Iterator[None]:
        """Turn an exception into the failure of one row, whose code draws its own numbers."""
        try:
            with drawing_from(self.rows[row].user_draws):
                yield
        except BaseException as error:
            self.failures.setdefault(row, request_failure(error))


class BatchPlan:
    """Stages of a set of rows, and the way each row picks.

    Attributes:
        rows: The rows, in order.
        stages: Called one after the other with the scores.
        greedy: Numbers of the rows that take the likeliest token.
        drawn: Numbers of the rows that draw from all tokens.
        listed: Numbers of the rows that draw from the shortlist.
        ways: The three again, if they have rows: name, numbers, and the numbers as int64 [r];
            None for all rows.
        shortlist: Filters of the rows that draw from it.
        needs_scores: Numbers of the rows whose stopping criteria read scores.
        wants_logprobs: Numbers of the rows that ask for log-probabilities.
        needs_host: Whether some row has no token before the host has done something for it: run
            code of a user, or describe the token.
    """

    def __init__(self, scores: ScoreBatch, *, can_list: bool, one_by_one: bool = False) -> None:
        """Plan the rows of a step.

        Args:
            scores: Scores with the rows, the vocabulary and the device.
            can_list: Whether filters may run on the shortlist.
            one_by_one: Whether every processor runs on its row alone, even if it has a form for
                many rows.
        """
        self.rows = scores.rows
        self.needs_scores: list[int] = []
        self.wants_logprobs: list[int] = []
        picked: dict[str, list[int]] = {"greedy": [], "drawn": [], "listed": []}
        listed: list[RowPlan] = []
        by_stage: dict[tuple[Any, ...], list[tuple[int, RankedProcessor]]] = {}
        for number, row in enumerate(self.rows):
            plan = row.plan
            if plan is None:
                plan = row.plan = plan_row(
                    row.processors,
                    row.passed,
                    scores.size,
                    draws=not row.is_greedy,
                    can_list=can_list and not row.needs_scores,
                )
            picked[plan.picks].append(number)
            if plan.picks == "listed":
                listed.append(plan)
            for each in plan.ranked:
                if one_by_one:
                    each = each._replace(batched=None)
                # Many rows share a form with one kind; row by row any kinds share a stage.
                kind = None if each.batched is None else type(each.processor)
                by_stage.setdefault((each.rank, kind), []).append((number, each))
            if row.needs_scores:
                self.needs_scores.append(number)
            if row.top_logprobs is not None:
                self.wants_logprobs.append(number)
        self.greedy, self.drawn, self.listed = picked.values()
        self.shortlist = Shortlist(listed)
        self.ways = [
            (way, numbers, None if len(numbers) == len(self.rows) else scores.tensor(numbers))
            for way, numbers in picked.items()
            if numbers
        ]
        self.stages = [
            _stage(ranked, scores)
            for _, ranked in sorted(by_stage.items(), key=lambda item: item[0][0])
        ]
        asks_host = any(isinstance(stage, _OneByOne) for stage in self.stages)
        self.needs_host = bool(self.needs_scores or self.wants_logprobs or asks_host)


def _stage(
    ranked: list[tuple[int, RankedProcessor]], scores: ScoreBatch
) -> Callable[[ScoreBatch], None]:
    if ranked[0][1].batched is None:
        return _OneByOne(ranked)
    if any(each.number in scores.rows[row].processors.followed for row, each in ranked):
        return _Followed(ranked, scores)
    return _many_rows(ranked, scores)


def _many_rows(
    ranked: list[tuple[int, RankedProcessor]], scores: ScoreBatch
) -> Callable[[ScoreBatch], None]:
    batched = ranked[0][1].batched
    assert batched is not None
    return batched([RowProcessor(row, each.processor) for row, each in ranked], scores)


class _Followed:
    """Stage of one kind with processors that users passed: each runs alone once it has to."""

    def __init__(self, ranked: list[tuple[int, RankedProcessor]], scores: ScoreBatch) -> None:
        self._ranked = ranked
        self._followed = [
            scores.rows[row].processors.followed.get(each.number) for row, each in ranked
        ]
        self._stages = [*self._lay_out(scores)]

    def __call__(self, scores: ScoreBatch) -> None:
        """Look for changes, which an earlier processor of this step may have made, and run.

        Where an attribute of one is wrong, this stage runs once more row by row, and not the step:
        what stood before it may be code of others, which counts its calls.
        """
        before = scores.values.clone()
        try:
            is_new = [each.follow() for each in self._followed if each is not None]
            if any(is_new):
                self._stages = [*self._lay_out(scores)]
            for stage in self._stages:
                stage(scores)
            made = scores.values
            if made.shape == before.shape and made.is_floating_point():
                return
        except BaseException as error:
            request_failure(error)
        scores.values = before
        self._stages = [_OneByOne(self._ranked)]
        self._stages[0](scores)

    def _lay_out(self, scores: ScoreBatch) -> Iterator[Callable[[ScoreBatch], None]]:
        alone = [each is not None and each.runs_alone for each in self._followed]
        together = [*compress(self._ranked, map(not_, alone))]
        if together:
            yield _many_rows(together, scores)
        if any(alone):
            yield _OneByOne([*compress(self._ranked, alone)])


class _OneByOne:
    """Stage that runs each processor on its own row."""

    def __init__(self, ranked: list[tuple[int, RankedProcessor]]) -> None:
        self._ranked = ranked

    def __call__(self, scores: ScoreBatch) -> None:
        """Run them; one that raises or spoils its scores fails its row."""
        for row, each in self._ranked:
            if row not in scores.failures and row not in scores.apart:
                with scores.guarded(row):
                    self._run(row, each.number, scores)

    @staticmethod
    def _run(number: int, first: int, scores: ScoreBatch) -> None:
        row = scores.rows[number]
        ids = row.input_ids(scores.logits.device)
        row.processors.begin(ids, scores.raw(number))
        # A copy, since code of a user may keep its scores, or write to them.
        own: Tensor = scores.values[number : number + 1].clone()
        made = row.processors.run_one(first, ids, own)
        if made.dtype == torch.float32:
            scores.values[number] = made[0]
            return
        # The other rows are not of this dtype, so this one goes on without them.
        for later in range(first + 1, len(row.processors)):
            made = row.processors.run_one(later, ids, made)
        scores.apart[number] = made
