"""A row keeps its own state, reads each token once, and tells why it ends or fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.engine.sampling.row import SamplerRow
from asyncgen.errors import InvalidScoresError
from asyncgen.generation.logits import TemperatureLogitsWarper
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from tests.doubles.models import EOS
from tests.engine.making import request_for

CPU = torch.device("cpu")


def test_samples_of_a_request_have_state_of_their_own() -> None:
    request, _ = request_for(
        [1, 2],
        n=2,
        do_sample=True,
        no_repeat_ngram_size=2,
        presence_penalty=1.0,
        temperature=0.5,
        top_k=0,
    )
    rows = [SamplerRow(request, index) for index in range(2)]
    for first, second, original in zip(
        rows[0].processors, rows[1].processors, rows[0].originals, strict=True
    ):
        keeps_state = not isinstance(original, TemperatureLogitsWarper)
        assert (first is not second) == (first is not original) == keeps_state
    assert rows[0].key != rows[1].key


def test_ids_grow_in_place() -> None:
    row = SamplerRow(request_for([1, 2, 3])[0], 0)
    live = [1, 2, 3]
    row.token_ids = live
    first = row.input_ids(CPU)
    assert first.tolist() == [[1, 2, 3]]
    for token in range(100):
        live.append(token)
        assert row.input_ids(CPU).tolist() == [live]
    assert row.position == 103
    assert first.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("token", "length", "wanted"),
    [(5, 3, None), (EOS, 3, "stop"), (5, 6, "length"), (EOS, 6, "stop")],
)
def test_reasons_are_those_of_the_request(token: int, length: int, wanted: str | None) -> None:
    row = SamplerRow(request_for([1, 2], max_new_tokens=4)[0], 0)
    row.token_ids = [1, 2, *[4] * (length - 3), token]
    assert row.reason_to_end(None) == wanted
    ids = torch.tensor([row.token_ids])
    assert row.ends.reasons([token], [True], length, ids, torch.zeros(1, 9)) == [wanted]


def test_a_cancelled_row_ends() -> None:
    request, _ = request_for([1, 2])
    row = SamplerRow(request, 0)
    row.token_ids.append(3)
    request.cancel.set()
    assert row.reason_to_end(None) == "cancelled"


def test_criteria_of_users_see_their_row_alone() -> None:
    seen: list[Any] = []

    def ends_at_7(input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        seen.append((input_ids.tolist(), scores))
        return input_ids[:, -1] == 7

    criteria = StoppingCriteriaList([ends_at_7])
    request, _ = request_for([1, 2], n=2, do_sample=True, stopping_criteria=criteria)
    rows = [SamplerRow(request, index) for index in range(2)]
    rows[0].token_ids.append(7)
    rows[1].token_ids.append(8)
    scores = torch.zeros(1, 9)
    assert [row.reason_to_end(scores) for row in rows] == ["stop", None]
    assert seen == [([[1, 2, 7]], scores), ([[1, 2, 8]], scores)]


def test_a_failure_names_what_is_behind_it() -> None:
    plain = SamplerRow(request_for([1, 2])[0], 0)
    error = plain.failure(torch.full((1, 260), torch.nan), float("nan"))
    assert type(error) is FloatingPointError and "position 2" in str(error)
    banning = SamplerRow(request_for([1, 2], suppress_tokens=list(range(260)))[0], 0)
    error = banning.failure(torch.zeros(1, 260), float("-inf"))
    assert isinstance(error, InvalidScoresError)
    assert error.processor == "SuppressTokensLogitsProcessor"
    error = banning.failure(torch.full((1, 260), torch.nan), float("nan"))
    assert "the model's logits" in str(error)
