"""JSON in slices is the JSON of the standard library, entry by entry."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.serving import sliced_json
from asyncgen_apps.serving.sliced_json import TooManyNested, parse
from asyncgen_apps.serving.time_slices import slices
from tests.cases import for_each

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
)


@given(value=VALUES, indent=st.sampled_from([None, 1]), is_ascii=st.booleans())
def test_the_same_as_in_the_standard_library(value: object, indent: int, is_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    expected = repr(json.loads(text))
    assert repr(parse(text)) == repr(parse(text.encode())) == expected


@for_each(
    "text", ["", "{", "[1,]", '{"a" 1}', '{"a":1,}', "nul", "[1] 2", '"\n"', b"\xff", "1" * 5000]
)
def test_invalid_json_raises_value_error(text: str | bytes) -> None:
    for read in (json.loads, parse):
        with pytest.raises(ValueError):
            read(text)
    with pytest.raises(RecursionError):
        parse("[" * 10_000)


@pytest.mark.parametrize("entry", ["1", "1.5", '""', "[]", "{}", "true", "null", '{"a":0}', "[0]"])
def test_it_rests_between_entries(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("asyncgen_apps.serving.time_slices.SLICE", 0.0)
    monkeypatch.setattr("asyncgen_apps.serving.time_slices.time.sleep", rests.append)
    text = "[" + f"{entry}," * 99 + "0]"
    parse(text)
    assert not rests
    with slices():
        parse(text)
    assert len(rests) >= 100


def test_lists_and_objects_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_json, "MOST_NESTED", 5)
    assert parse('[[], {"a": {}}, []]') == [[], {"a": {}}, []]
    with pytest.raises(TooManyNested, match="more than 5 lists and objects"):
        parse('[[], {"a": {}}, [], []]')
