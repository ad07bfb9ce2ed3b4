from __future__ import annotations

import inspect

from asyncgen import GenerationConfig, GenerationMixin
from asyncgen_apps.bench.cases import CASES, GREEDY, GROUNDED_GREEDY


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


def test_parameters_are_those_of_generate() -> None:
    known = {*vars(GenerationConfig()), *inspect.signature(GenerationMixin.generate).parameters}
    for case in CASES:
        assert set(case.parameters) <= known, case.name


def test_greedy_decoding_is_among_them_plain_and_grounded() -> None:
    assert GREEDY in CASES and GROUNDED_GREEDY in CASES
    assert not GREEDY.parameters and not GROUNDED_GREEDY.parameters
    assert GROUNDED_GREEDY.is_grounded and not GREEDY.is_grounded
