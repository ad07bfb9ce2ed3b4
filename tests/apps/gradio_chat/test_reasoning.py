"""Reasoning is told from the reply, at every moment of a growing answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.gradio_chat.reasoning import Parts, split_thinking
from tests.cases import for_each


@for_each(
    ("text", "parts"),
    [
        ("", Parts(None, "")),
        ("A reply.", Parts(None, "A reply.")),
        ("<th", Parts("", "", True)),
        ("<think>", Parts("", "", True)),
        ("<think>\nHm, two", Parts("Hm, two", "", True)),
        ("<think>Hm</thi", Parts("Hm", "", True)),
        ("<think>Hm</think>", Parts("Hm", "")),
        ("<think>\nHm\n</think>\n\nTwo.", Parts("Hm", "Two.")),
        ("Hm, so\n</think>\nTwo.", Parts("Hm, so", "Two.")),
        ("As <think> opens </think>", Parts(None, "As <think> opens </think>")),
        ("<thin ice", Parts(None, "<thin ice")),
        ("  <think>Hm</think>Two", Parts("Hm", "Two")),
    ],
)  # fmt: skip
def test_split(text: str, parts: Parts) -> None:
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
    assert split_thinking(text) == Parts(None, text)
