"""Each strategy has its row and its own checks, which no other is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.strategies import STRATEGIES, strategy_for
from asyncgen.generation.strategies.drafters.drafting import Assistance
from asyncgen.generation.strategies.mode_checks import StrategyInputs, check_mode
from tests.cases import for_each
from tests.doubles.models import TableModel

CASES: list[tuple[GenerationMode, dict[str, Any], str]] = [
    (GenerationMode.ASSISTED_GENERATION, {"prompt_lookup_num_tokens": 3}, "input_ids"),
    (GenerationMode.CONTRASTIVE_SEARCH, {"penalty_alpha": 0.5, "top_k": 999}, "top_k"),
    (GenerationMode.DOLA_GENERATION, {"dola_layers": "middle"}, "dola_layers"),
]


@pytest.mark.parametrize(("mode", "fields", "name"), CASES)
def test_strategy_is_asked_for_by_name(
    mode: GenerationMode, fields: dict[str, Any], name: str
) -> None:
    config = GenerationConfig(**fields)
    on = StrategyInputs(TableModel(), config, rows=2, assistance=Assistance())
    with pytest.raises(InvalidRequestError, match=name):
        check_mode(mode, on)
    check_mode(GenerationMode.GREEDY_SEARCH, on)


def test_an_unknown_helper_is_looked_at_later() -> None:
    on = StrategyInputs(TableModel(), GenerationConfig(), rows=2)
    check_mode(GenerationMode.ASSISTED_GENERATION, on)


@for_each("mode", list(GenerationMode))
def test_every_mode_has_a_strategy(mode: GenerationMode) -> None:
    assert strategy_for(mode) is STRATEGIES[mode]
