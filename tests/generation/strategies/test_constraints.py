"""Constraints step, complete and begin anew; a list of them works them off in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.strategies.constraints import (
    Constraint,
    ConstraintListState,
    DisjunctiveConstraint,
    PhrasalConstraint,
    constraints_of,
)
from tests.cases import for_each

IDS = st.integers(0, 4)
PHRASES = st.lists(IDS, min_size=1, max_size=3).map(PhrasalConstraint)


def _words(words: list[list[int]]) -> list[list[int]]:
    """Words of which none begins with another one."""
    kept: list[list[int]] = []
    for word in words:
        if all(word[: len(other)] != other[: len(word)] for other in kept):
            kept.append(word)
    return kept


WORDS = st.lists(st.lists(IDS, min_size=1, max_size=3), min_size=1, max_size=3)
ALTERNATIVES = WORDS.map(_words).map(DisjunctiveConstraint)
ANY = st.one_of(PHRASES, ALTERNATIVES)


def contains(text: list[int], phrase: list[int]) -> bool:
    """Tell whether a phrase stands in a text."""
    size = len(phrase)
    return any(text[place : place + size] == phrase for place in range(len(text) - size + 1))


def is_met(constraint: Constraint, text: list[int]) -> bool:
    """Tell whether a text meets a constraint, by search."""
    if isinstance(constraint, PhrasalConstraint):
        return contains(text, constraint.token_ids)
    assert isinstance(constraint, DisjunctiveConstraint)
    return any(contains(text, word) for word in constraint.token_ids)


@given(ANY)
def test_suggested_tokens_complete_a_constraint(constraint: Constraint) -> None:
    for step in range(constraint.seqlen):
        assert constraint.remaining() == constraint.seqlen - step
        wanted = constraint.advance()
        token = wanted[-1] if isinstance(wanted, list) else wanted
        assert token is not None
        assert constraint.does_advance(token)
        stepped, completed, was_reset = constraint.update(token)
        assert (stepped, was_reset) == (True, False)
        if completed:
            break
    assert completed
    assert constraint.remaining() == 0
    assert constraint.advance() is None


def test_a_wrong_token_begins_anew() -> None:
    phrase = PhrasalConstraint([4, 5, 6])
    assert phrase.update(4) == (True, False, False)
    assert phrase.update(9) == (False, False, True)
    assert phrase.advance() == 4
    either = DisjunctiveConstraint([[1, 2], [1, 3]])
    assert either.advance() == [1]
    assert either.update(1) == (True, False, False)
    assert either.advance() == [2, 3]
    assert either.update(7) == (False, False, True)
    assert either.advance() == [1]


@given(ANY, st.integers(0, 3))
def test_copies(constraint: Constraint, steps: int) -> None:
    for _ in range(min(steps, constraint.seqlen)):
        wanted = constraint.advance()
        if wanted is None:
            break
        constraint.update(wanted[0] if isinstance(wanted, list) else wanted)
    twin, fresh = constraint.copy(stateful=True), constraint.copy()
    assert (twin.advance(), twin.remaining()) == (constraint.advance(), constraint.remaining())
    assert fresh.remaining() == constraint.seqlen
    left = constraint.remaining()
    twin.reset()
    assert constraint.remaining() == left


@for_each("ids", [[], [-1], "a", [[1]], [1.0], (1, 2), [True], None])
def test_phrases_that_are_none(ids: Any) -> None:
    with pytest.raises(InvalidRequestError, match="token_ids"):
        PhrasalConstraint(ids)


@for_each("ids", [[], [1], [[]], [[-1]], [[1], [1]], [[1, 2], [1, 2, 3]], "a"])
def test_alternatives_that_are_none(ids: Any) -> None:
    with pytest.raises(InvalidRequestError, match="nested_token_ids"):
        DisjunctiveConstraint(ids)


@pytest.mark.parametrize("constraint", [PhrasalConstraint([1]), DisjunctiveConstraint([[1]])])
def test_tokens_are_integers(constraint: Constraint) -> None:
    with pytest.raises(TypeError, match="integer"):
        constraint.does_advance("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer"):
        constraint.update(1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer"):
        ConstraintListState([constraint]).add(None)  # type: ignore[arg-type]


class _Stubborn(PhrasalConstraint):
    """Asks for tokens for ever."""

    def update(self, token_id: int) -> tuple[bool, bool, bool]:
        """Take a token in and stay."""
        return True, False, False


class _Fickle(PhrasalConstraint):
    """Refuses its own choice."""

    def does_advance(self, token_id: int) -> bool:
        """Refuse."""
        return False


class _Forgetful(PhrasalConstraint):
    """Begins anew at its own choice."""

    def update(self, token_id: int) -> tuple[bool, bool, bool]:
        """Forget."""
        return False, False, True


@pytest.mark.parametrize(
    ("kind", "message"),
    [(_Stubborn, "never completed"), (_Fickle, "refuses"), (_Forgetful, "is reset")],
)
def test_custom_constraint_is_checked_at_construction(kind: type, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind([1, 2])


@given(st.lists(ANY, min_size=1, max_size=3), st.lists(IDS, max_size=14))
def test_a_list_is_complete_only_if_all_are_met(
    constraints: list[Constraint], text: list[int]
) -> None:
    state = ConstraintListState(constraints)
    assert state.get_bank() == 0
    state.reset(text)
    if state.completed:
        assert all(is_met(constraint, text) for constraint in constraints)
        assert state.get_bank() == state.max_seqlen * len(constraints)
        assert state.add(0) == (True, False)
    else:
        assert state.get_bank() < state.max_seqlen * len(constraints)
        assert state.advance()


@given(st.lists(ANY, min_size=1, max_size=3), st.lists(IDS, max_size=6))
def test_following_a_lists_advice_completes_it(
    constraints: list[Constraint], text: list[int]
) -> None:
    state = ConstraintListState(constraints)
    for token in text:
        state.add(token)
    bank = state.get_bank()
    while not state.completed:
        wanted = state.advance()
        assert wanted is not None
        assert state.add(wanted[0])[1]
        assert state.get_bank() > bank
        bank = state.get_bank()
    assert state.advance() is None


@given(st.lists(ANY, min_size=1, max_size=3), st.lists(IDS, max_size=8), st.lists(IDS, max_size=8))
def test_copied_state_continues_equally_and_independently(
    constraints: list[Constraint], before: list[int], after: list[int]
) -> None:
    state, whole = ConstraintListState(constraints), ConstraintListState(constraints)
    state.reset(before)
    kept = (state.get_bank(), state.advance(), state.completed)
    twin = state.copy()
    for token in after:
        twin.add(token)
    whole.reset(before)
    for token in after:
        whole.add(token)
    assert (twin.get_bank(), twin.advance()) == (whole.get_bank(), whole.advance())
    assert (state.get_bank(), state.advance(), state.completed) == kept
    assert state.copy(stateful=False).get_bank() == 0


def test_words_of_a_configuration() -> None:
    phrase = PhrasalConstraint([9])
    config = GenerationConfig(
        num_beams=2, constraints=[phrase], force_words_ids=[[1, 2], [[3], [4]]]
    )
    found = constraints_of(config)
    assert [type(each) for each in found] == [
        PhrasalConstraint,
        PhrasalConstraint,
        DisjunctiveConstraint,
    ]
    assert constraints_of(GenerationConfig()) == []
