"""Stopping criteria as plain checks give the reasons that the tensor criteria would."""

from __future__ import annotations

from typing import Any

import torch

from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.generation.stopping.criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from asyncgen.generation.stopping.stop_checks import StopChecks

IDS, SCORES = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 9)


class SecondRow(StoppingCriteria):
    """A user's criterion, for the second row only."""

    calls = 0

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        self.calls += 1
        return torch.tensor([False, True])


def _reasons(
    ends: StopChecks, tokens: list[int], live: list[bool] | None = None
) -> list[str | None]:
    return ends.reasons(tokens, live or [True, True], 4, IDS, SCORES)


def test_end_of_sequence_ends_its_row_only() -> None:
    ends = StopChecks(StoppingCriteriaList([EosTokenCriteria([7, 8])]))
    assert ends.eos_token_ids == {7, 8}
    assert _reasons(ends, [7, 1]) == ["stop", None]
    assert _reasons(ends, [7, 8], [False, True]) == [None, "stop"]


def test_length_ends_every_live_row_but_an_end_of_sequence_counts_first() -> None:
    ends = StopChecks(StoppingCriteriaList([MaxLengthCriteria(4), EosTokenCriteria(7)]))
    assert _reasons(ends, [7, 1]) == ["stop", "length"]
    assert _reasons(ends, [1, 1], [True, False]) == ["length", None]
    assert (
        StopChecks(StoppingCriteriaList([MaxLengthCriteria(9), MaxLengthCriteria(5)])).max_length
        == 5
    )


def test_time_and_cancel_interrupt() -> None:
    limit = MaxTimeCriteria(5.0)
    now = [limit.deadline - 0.5]
    cancel = CancelCriteria()
    ends = StopChecks(StoppingCriteriaList([limit, cancel]), clock=lambda: now[0])
    assert ends.interrupted() is None
    assert _reasons(ends, [1, 1]) == [None, None]
    now[0] += 1
    assert ends.interrupted() == "time"
    cancel.set()
    assert _reasons(ends, [1, 1]) == ["cancelled", "cancelled"]


def test_user_criteria_and_subclasses_are_called_as_documented() -> None:
    class Stricter(EosTokenCriteria):
        """Says no, whatever the token is."""

        def __call__(
            self, input_ids: torch.Tensor, scores: torch.Tensor | None = None, **kwargs: Any
        ) -> torch.Tensor:
            return torch.tensor([False, False])

    second = SecondRow()
    ends = StopChecks(StoppingCriteriaList([Stricter(7), second]))
    assert ends.eos_token_ids == frozenset()
    assert _reasons(ends, [7, 7]) == [None, "stop"]
    assert second.calls == 1


def test_a_row_can_be_ended_from_outside() -> None:
    ends = StopChecks(StoppingCriteriaList())
    ends.stop_row(1)
    assert _reasons(ends, [1, 1]) == [None, "stop"]


def test_what_a_user_changes_in_their_own_plain_criteria_counts() -> None:
    end, length, time = EosTokenCriteria(7), MaxLengthCriteria(9), MaxTimeCriteria(100.0)
    own = [end, length, time]
    ends = StopChecks(StoppingCriteriaList([MaxLengthCriteria(9), end, time]), passed=own)
    kept = StopChecks(StoppingCriteriaList(own))
    no_hits = torch.zeros(2, dtype=torch.bool)
    assert torch.equal(ends.hits(torch.tensor([8, 8]), 4, lambda: IDS, SCORES)[0], no_hits)
    end.eos_token_id = torch.tensor([8])
    assert _reasons(ends, [7, 8]) == [None, "stop"] and ends.reason(0, 8, 4) == "stop"
    assert ends.hits(torch.tensor([7, 8]), 4, lambda: IDS, SCORES)[0].tolist() == [False, True]
    length.max_length = 20  # the one of the configuration stays
    assert ends.reason(0, 1, 9) == "length"
    length.max_length = 4  # also where it only gave the configuration its length
    assert _reasons(ends, [1, 8]) == ["length", "stop"]
    length.max_length, time.max_time = 9, -1.0
    assert ends.interrupted() == ends.reason(0, 1, 4) == "time"
    assert _reasons(kept, [7, 8]) == ["stop", None]  # those of nobody are read once
