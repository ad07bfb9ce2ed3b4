"""No client can use a budget up, and one alone has nearly all of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.serving.shared_budget import MOST_TIMES, SharedBudget
from tests.cases import for_each

STEPS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40), st.booleans()))


def fill(budget: SharedBudget, client: str) -> int:
    """Take one by one until nothing more is given; return how many that were."""
    while budget.take(client):
        pass
    return budget.held_by(client)


@for_each(
    ("most", "alone", "second", "third"),
    [(1, 1, 0, 0), (2, 1, 1, 0), (4, 3, 1, 0), (8, 7, 1, 0), (64, 56, 7, 1), (1024, 896, 112, 14)],
)
def test_one_client_leaves_an_eighth_to_the_next(
    most: int, alone: int, second: int, third: int
) -> None:
    budget = SharedBudget(most)
    assert [fill(budget, each) for each in "abc"] == [alone, second, third]
    assert budget.used <= most


def test_who_holds_much_gets_nothing_until_it_fits() -> None:
    budget = SharedBudget(64)
    for each in "ab":
        fill(budget, each)
    for _ in range(7):
        budget.give_back("a")
        assert not budget.take("a"), "it waits for others to have their part"
    assert fill(budget, "b") == 13 and fill(budget, "a") == 49


def test_the_only_client_there_can_be_has_everything() -> None:
    budget = SharedBudget(8, is_shared=False)
    assert fill(budget, "a") == 8
    assert budget.refusal("a", "places are taken") == "8 of at most 8 places are taken"


def test_a_refusal_says_whose_they_are() -> None:
    budget = SharedBudget(8 << 20)
    budget.take("a", 7 << 20)
    said = budget.refusal("a", "MiB are kept", 1 << 20)
    assert said.startswith("7 of at most 8 MiB are kept, 7 of them yours: one client has at most 7")
    assert budget.refusal("b", "MiB are kept", 1 << 20) == "7 of at most 8 MiB are kept"


@given(STEPS)
def test_counts_are_those_of_what_was_given(steps: list[tuple[str, int, bool]]) -> None:
    budget, held = SharedBudget(100), dict.fromkeys("abcdef", 0)
    for client, amount, takes in steps:
        if takes:
            before = held[client]
            free = 100 - sum(held.values()) - amount
            is_given = budget.take(client, amount)
            assert is_given == (free >= 0 and (not before or before + amount <= MOST_TIMES * free))
            held[client] += amount * is_given
        else:
            budget.give_back(client, held[client])
            held[client] = 0
        assert budget.used == sum(held.values()) <= 100
        assert {each: budget.held_by(each) for each in held} == held
        if any(held.values()):
            assert held[budget.largest()] == max(held.values())
