"""Stop strings: found where they are completed first, never shown, nothing else kept back."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamers.stop_strings import StopStrings

letters = st.text(alphabet="ab\n.*[^é", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab\n.*[^é", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Search every beginning of the text for an ending that is a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """Filter the pieces to the end."""
    stop_filter, shown, found = StopStrings(stops), "", None
    for piece in pieces:
        text, found = stop_filter.put(piece)
        shown += text
    return shown + stop_filter.flush(), found


@given(st.lists(letters, max_size=6), stop_lists)
def test_the_same_as_a_naive_search(pieces: list[str], stops: list[str]) -> None:
    assert run(stops, pieces) == naive("".join(pieces), stops)


@given(st.lists(letters, max_size=6), stop_lists)
def test_the_cut_into_pieces_does_not_matter(pieces: list[str], stops: list[str]) -> None:
    assert run(stops, pieces) == run(stops, list("".join(pieces)))


@given(letters, stop_lists)
def test_only_a_possible_beginning_is_held_back(text: str, stops: list[str]) -> None:
    stop_filter = StopStrings(stops)
    shown, found = stop_filter.put(text)
    if found is None:
        possible = [
            n
            for n in range(len(text) + 1)
            for s in stops
            if text[n:] and s[: len(text) - n] == text[n:]
        ]
        assert shown == text[: min(possible, default=len(text))]
        assert stop_filter.held == text[len(shown) :]


def test_the_first_to_be_completed_wins_and_then_the_longest() -> None:
    assert run(["bcd", "abcde"], ["xabcde"]) == ("xa", "bcd")
    assert run(["cd", "bcd"], ["abcd"]) == ("a", "bcd")


def test_after_a_match_everything_is_dropped() -> None:
    stop_filter = StopStrings(["\n\n"])
    assert stop_filter.put("one\n") == ("one", None)
    assert stop_filter.put("\ntwo") == ("", "\n\n")
    assert stop_filter.put("three") == ("", "\n\n")
    assert stop_filter.flush() == ""


def test_copy_is_independent_of_the_original() -> None:
    one = StopStrings(["stop"])
    assert one.put("do not st") == ("do not ", None)
    two = copy.copy(one)
    assert one.put("op") == ("", "stop")
    assert two.put("and") == ("stand", None)


def test_without_stop_strings_everything_passes() -> None:
    assert run([], ["a", "b"]) == ("ab", None)


def test_cost_does_not_depend_on_the_length_of_a_stop_string() -> None:
    stop_filter = StopStrings(["a" * 5000 + "b"])
    steps = 0
    automaton = stop_filter._automaton
    original = automaton.step

    def counted(node: int, char: str) -> int:
        nonlocal steps
        steps += 1
        return original(node, char)

    automaton.step = counted  # type: ignore[method-assign]
    shown = "".join(stop_filter.put("a")[0] for _ in range(10_000))
    assert len(shown) == 5000
    assert steps == 10_000


@pytest.mark.parametrize("bad", [[""], ["a", ""], "stop", [1]])
def test_bad_stop_strings_are_refused(bad: list[str]) -> None:
    with pytest.raises(ValueError, match="non-empty strings"):
        StopStrings(bad)
