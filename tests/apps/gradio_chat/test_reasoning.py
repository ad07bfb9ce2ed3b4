"""Reasoning is told from the reply, at every moment of a growing answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.gradio_chat.reasoning import SplitAnswer, split_thinking
from tests.cases import for_each


@for_each(
    ("text", "parts"),
    [
        ("", SplitAnswer(None, "")),
        ("A reply.", SplitAnswer(None, "A reply.")),
        ("<th", SplitAnswer("", "", True)),
        ("<think>", SplitAnswer("", "", True)),
        ("<think>\nHm, two", SplitAnswer("Hm, two", "", True)),
        ("<think>Hm</thi", SplitAnswer("Hm", "", True)),
        ("<think>Hm</think>", SplitAnswer("Hm", "")),
        ("<think>\nHm\n</think>\n\nTwo.", SplitAnswer("Hm", "Two.")),
        ("Hm, so\n</think>\nTwo.", SplitAnswer("Hm, so", "Two.")),
        ("As <think> opens </think>", SplitAnswer(None, "As <think> opens </think>")),
        ("<thin ice", SplitAnswer(None, "<thin ice")),
        ("  <think>Hm</think>Two", SplitAnswer("Hm", "Two")),
    ],
)  # fmt: skip
def test_split(text: str, parts: SplitAnswer) -> None:
    assert split_thinking(text) == parts


WORDS = st.text(st.characters(exclude_characters="<>"), max_size=30)


@given(WORDS, WORDS)
def test_every_beginning_of_an_answer_shows_beginnings_of_its_parts(
    thought: str, reply: str
) -> None:
    whole = f"<think>{thought}</think>{reply}"
    for end in range(1, len(whole) + 1):
        parts = split_thinking(whole[:end])
        assert parts.thought is not None
        assert thought.strip().startswith(parts.thought)
        assert reply.lstrip().startswith(parts.answer)
    final = split_thinking(whole)
    assert (final.thought, final.answer) == (thought.strip(), reply.lstrip())


@given(WORDS)
def test_text_without_tags_stays_as_it_is(text: str) -> None:
    assert split_thinking(text) == SplitAnswer(None, text)
