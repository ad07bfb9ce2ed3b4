"""The table of strategies, and the error for a mode that is not in it."""

from __future__ import annotations

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.strategies import STRATEGIES, strategy_for


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_mode_has_a_strategy_or_a_clear_error(mode: GenerationMode) -> None:
    if mode in STRATEGIES:
        assert strategy_for(mode) is STRATEGIES[mode]
    else:
        with pytest.raises(InvalidRequestError, match=mode.value):
            strategy_for(mode)
