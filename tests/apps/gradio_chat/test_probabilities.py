"""The heat map: every token, its numbers, and nothing of the model's that a browser would run."""

from __future__ import annotations

import html
import json
import re
from math import log

from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.gradio_chat.probabilities import EMPTY, SCRIPT, STYLE, heat_map
from tests.apps.gradio_chat.doubles import logprob


def _data(page: str) -> list[list]:
    return [json.loads(html.unescape(each)) for each in re.findall(r'data-token="(.*?)"', page)]


def test_each_token_carries_its_probability_and_alternatives() -> None:
    page = heat_map([logprob("Two", log(0.75)), logprob("\n", log(0.5))])
    first, second = _data(page)
    assert first[:2] == ["Two", 0.75]
    assert [text for text, _ in first[2]] == ["Two", "other"]
    assert second[0] == "\n"
    assert "--p:0.750" in page
    assert "↵<br>" in page


def test_the_summary_counts_the_whole_answer() -> None:
    page = heat_map([logprob("a", log(0.25)), logprob("b", log(1.0))])
    figures = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert figures == {
        "tokens": "2",
        "perplexity": "2.00",
        "mean probability": "62%",
        "most probable token taken": "100%",
    }


def test_heat_map_without_probabilities_is_the_empty_page() -> None:
    assert heat_map([]) == EMPTY


@given(st.text(min_size=1, max_size=20))
def test_model_text_is_escaped_in_the_heat_map(text: str) -> None:
    page = heat_map([logprob(text)])
    tags = set(re.findall(r"<(\w+)", page))
    assert tags <= {"dl", "div", "dt", "dd", "span", "i", "em", "br"}
    assert _data(page)[0][0] == text


def test_the_browser_side_is_there() -> None:
    assert "data" in SCRIPT
    assert ".token" in STYLE


def test_of_a_long_answer_the_beginning_is_drawn() -> None:
    entry = logprob("word")
    drawn = heat_map([entry] * 5000)
    assert drawn.count("data-token") == 4000  # each with two alternatives
    assert "1000 more tokens are not drawn" in drawn
    assert "<dd>5000</dd>" in drawn
    assert "not drawn" not in heat_map([entry] * 4000)
