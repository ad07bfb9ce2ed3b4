"""Answers in every format, whole and in pieces of every size."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.engine.output.sample_builder import SampleBuilder
from asyncgen.errors import InvalidRequestError
from asyncgen.text.tool_calls.call_collector import CallCollector
from asyncgen.text.tool_calls.format_detection import (
    NONE,
    TOOL_FORMATS,
    ChatFormats,
    find_formats,
)
from asyncgen.types import TokenEvent
from tests.cases import for_each
from tests.text.tool_calls.templates import BY_FORMAT, PLAIN, THINKING

PARAMETERS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    }
}
PARIS = {"city": 'Pa}r"is\n<é>', "days": 2}


@dataclass
class Read:
    """Parsed answer."""

    text: str
    reasoning: str
    calls: list[tuple[str, object]]
    errors: tuple[str, ...]


def read(
    formats: ChatFormats,
    answer: str,
    step: int = 1000,
    *,
    in_reasoning: bool = False,
    is_single: bool = False,
) -> Read:
    """Read an answer in pieces of so many characters."""
    calls = CallCollector(PARAMETERS, lambda number: f"id{number}", is_single=is_single)
    reader = formats.parser(calls, reads_reasoning=True, in_reasoning=in_reasoning)
    sample = SampleBuilder(0)
    for start in range(0, len(answer), step):
        text = reader.put(answer[start : start + step])
        reasoning, deltas = reader.take()
        sample.add(TokenEvent(0, (), text, reasoning=reasoning, tool_calls=tuple(deltas)))
    text = reader.flush()
    reasoning, deltas = reader.take()
    sample.add(TokenEvent(0, (), text, reasoning=reasoning, tool_calls=tuple(deltas)))
    built = sample.build()
    found = [(call.name, json.loads(call.arguments)) for call in built.tool_calls]
    return Read(built.text, built.reasoning, found, built.tool_errors)


def in_pieces(formats: ChatFormats, answer: str, *, in_reasoning: bool = False) -> Read:
    """Read an answer, and see that pieces of any size come to the same."""
    whole = read(formats, answer, in_reasoning=in_reasoning)
    for step in (1, 2, 3, 5, 11):
        assert read(formats, answer, step, in_reasoning=in_reasoning) == whole
    return whole


def named(tools: str | None = NONE, reasoning: str | None = NONE) -> ChatFormats:
    return find_formats(None, tools, reasoning)


ARGUMENTS = json.dumps(PARIS)
OBJECT = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
XML = 'Pa}r"is\n<é>'
ACTION = f'{{"tool_call_id": "0", "tool_name": "weather", "parameters": {ARGUMENTS}}}'
WORDS = "city='Pa}r\"is\\n<é>', days=2"
CHANNEL_CALL = (
    f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
)
ANSWERS = [
    ("qwen", f"<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>{OBJECT}"),
    (
        "qwen_coder",
        2
        * (
            f"<tool_call>\n<function=weather>\n<parameter=city>\n{XML}\n</parameter>\n"
            "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
        ),
    ),
    (
        "glm",
        2
        * (
            f"<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{XML}</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n"
        ),
    ),
    ("llama", f"<|python_tag|>{OBJECT}; {OBJECT}"),
    ("mistral", 2 * f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}"),
    ("mistral", 2 * f"[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{ARGUMENTS}"),
    ("mistral_list", f"[TOOL_CALLS][{OBJECT}, {OBJECT}]"),
    ("granite", f"<|tool_call|>[{OBJECT}, {OBJECT}]"),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜>"
        + 2 * f"<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
        + "<｜tool▁calls▁end｜>",
    ),
    (
        "deepseek_fenced",
        "<｜tool▁calls▁begin｜>"
        + 2
        * (
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{ARGUMENTS}\n```"
            "<｜tool▁call▁end｜>\n"
        )
        + "<｜tool▁calls▁end｜>",
    ),
    ("gemma", 2 * f'<|tool_call>call:weather{{city:<|"|>{XML}<|"|>,days:2}}<tool_call|>'),
    (
        "function_gemma",
        2 * f"<start_function_call>call:weather{{city:<escape>{XML}<escape>,days:2}}"
        "<end_function_call>",
    ),
    ("qwen", f"<tool_call>[{OBJECT}, {OBJECT}]</tool_call>"),
    ("granite", f"<tool_call>[{OBJECT}, {OBJECT}]"),  # as 3.1 writes it
    (
        "kimi_k2",
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.weather:{number}<|tool_call_argument_begin|>{ARGUMENTS}"
            "<|tool_call_end|>"
            for number in range(2)
        )
        + "<|tool_calls_section_end|>",
    ),
    ("command_r", f"<|START_ACTION|>[\n    {ACTION},\n    {ACTION}\n]<|END_ACTION|>"),
    ("nemotron", f"<TOOLCALL>[{OBJECT}, {OBJECT}]</TOOLCALL>"),
    ("apriel", f"<tool_calls>[{OBJECT}, {OBJECT}]</tool_calls>"),
    ("minimax_m1", f"<tool_calls>\n{OBJECT}\n{OBJECT}\n</tool_calls>"),
    ("phi_4", 2 * f"<|tool_call|>{OBJECT}<|/tool_call|>"),
    ("functools", f"functools[{OBJECT}, {OBJECT}]"),
    (
        "apertus",
        f'<|tools_prefix|>[{{"weather": {ARGUMENTS}}}, {{"weather": {ARGUMENTS}}}]<|tools_suffix|>',
    ),
    ("gigachat", 2 * f"<|function_call|>{OBJECT}"),
    ("functionary", 2 * f"<function=weather>{ARGUMENTS}</function>"),
    (
        "seed",
        2
        * (
            f"<seed:tool_call>\n<function=weather>\n<parameter=city>{XML}</parameter>\n"
            "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>\n"
        ),
    ),
    (
        "minimax_m2",
        "<minimax:tool_call>\n"
        + 2
        * (
            f'<invoke name="weather">\n<parameter name="city">{XML}</parameter>\n'
            '<parameter name="days">2</parameter>\n</invoke>\n'
        )
        + "</minimax:tool_call>",
    ),
    (
        "step_3",
        "<｜tool_calls_begin｜>"
        + 2
        * (
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="weather">'
            f'<steptml:parameter name="city">{XML}</steptml:parameter>'
            '<steptml:parameter name="days">2</steptml:parameter>'
            "</steptml:invoke><｜tool_call_end｜>"
        )
        + "<｜tool_calls_end｜>",
    ),
    (
        "hunyuan_3",
        "<tool_calls:opensource>\n"
        + 2
        * (
            "<tool_call:opensource>weather<tool_sep:opensource>\n"
            "<arg_key:opensource>city</arg_key:opensource>\n"
            f"<arg_value:opensource>{XML}</arg_value:opensource>\n"
            "<arg_key:opensource>days</arg_key:opensource>\n"
            "<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n"
        )
        + "</tool_calls:opensource>",
    ),
    (
        "minicpm",
        2
        * (
            f'<function name="weather"><param name="city">{XML}</param>'
            '<param name="days">2</param></function>'
        ),
    ),
    ("lfm2", f"<|tool_call_start|>[weather({WORDS}), weather({WORDS})]<|tool_call_end|>"),
    ("olmo_3", f"<function_calls>\nweather({WORDS})\nweather({WORDS})\n</function_calls>"),
]


@for_each(("name", "answer"), ANSWERS)
@for_each("reasoning", ["", "<think>\nOf <b> I think.\n\n</think>\n\n"])
def test_calls_of_every_format(name: str, answer: str, reasoning: str) -> None:
    found = in_pieces(named(name, "think"), f"{reasoning}Let me see.\n{answer}\nSo?")
    assert found.calls == [("weather", PARIS)] * 2 and not found.errors
    assert found.text == "Let me see.So?"
    assert found.reasoning == ("Of <b> I think." if reasoning else "")


@for_each(("name", "answer"), ANSWERS)
def test_answer_that_is_cut_loses_no_text(name: str, answer: str) -> None:
    formats = named(name)
    for cut in range(1, len(answer), 5):
        found = read(formats, answer[:cut])
        kept = found.text.strip()
        assert kept == answer[:cut].strip() or found.calls or found.errors
        assert len(found.calls) + len(found.errors) <= 3  # the third: a marker cut in two
        if found.errors:
            assert answer[:cut].rstrip().endswith(kept)  # all from the marker on


def test_messages_on_channels() -> None:
    formats = named("harmony", "harmony")
    call = CHANNEL_CALL.removeprefix("<|channel|>")
    thought = "<|channel|>analysis<|message|>I <think>.<|end|><|start|>assistant"
    found = in_pieces(formats, f"{thought}<|channel|>{call}")
    assert (found.text, found.reasoning, found.calls) == ("", "I <think>.", [("weather", PARIS)])
    said = "<|channel|>final<|message|>Hello!<|return|>"
    found = in_pieces(formats, thought + said)
    assert (found.text, found.reasoning, found.calls) == ("Hello!", "I <think>.", [])
    assert in_pieces(formats, "Only text.").text == "Only text."
    found = in_pieces(formats, "<|channel|>commentary to=functions.weather<|message|>{oh<|call|>")
    assert "to=functions.weather" in found.text and not found.calls and len(found.errors) == 1


THOUGHT = "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Hello!<|return|>"


@for_each(
    ("answer", "text", "reasoning"),
    [
        # the head of the analysis has no end, so the message that follows is not a part of it
        (
            "<|channel|>analysis I think.<|end|><|start|>assistant" + FINAL,
            "<|channel|>analysis I think.Hello!",
            "",
        ),
        ("<|channel|>analysis<|end|><|start|>assistant" + FINAL, "<|channel|>analysisHello!", ""),
        (
            "<|channel|>analysis I think<|channel|>final<|message|>Hello!",
            "<|channel|>analysis I thinkHello!",
            "",
        ),
        (THOUGHT + "<|channel|>final Hello!", "<|start|>assistant<|channel|>final Hello!", "I"),
        (THOUGHT + "<|channel|>final<|return|>", "<|start|>assistant<|channel|>final", "I"),
        (THOUGHT + " Hello!<|return|>", "<|start|>assistant Hello!", "I"),
        ("<|channel|>comment<|message|>Hello!<|end|>", "<|channel|>comment<|message|>Hello!", ""),
        ("<|start|>user<|message|>Hello!", "<|start|>user<|message|>Hello!", ""),
        (" to=5 is Hello!", " to=5 is Hello!", ""),
        (THOUGHT + "<|channel|>commentary to=functions.weather Hello!", "Hello!", "I"),
        (THOUGHT + "<|channel|>commentary to=browser<|message|>Hello!<|call|>", "to=browser", "I"),
    ],
)
def test_heads_that_cannot_be_read_are_text_and_an_error(
    answer: str, text: str, reasoning: str
) -> None:
    found = in_pieces(named("harmony", "harmony"), answer)
    assert text in found.text and "Hello!" in found.text + "Hello!" * ("Hello!" not in answer)
    assert len(found.errors) == 1 and not found.calls
    assert found.reasoning.startswith(reasoning)


def test_heads_as_they_are_written() -> None:
    formats = named("harmony", "harmony")
    for head in (
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.weather<|message|>",
        "<|channel|>commentary to=functions.weather json<|message|>",
        " to=functions.weather<|channel|>commentary json<|message|>",
        "<|start|>assistant to=functions.weather<|channel|>analysis code<|message|>",
    ):
        found = in_pieces(formats, f"{head}{ARGUMENTS}<|call|>")
        assert found == Read("", "", [("weather", PARIS)], ())
    for head in ("<|channel|>commentary", "<|start|>assistant", "<|channel|>final to=all"):
        assert in_pieces(formats, f"{head}<|message|>Hello!<|end|>") == Read("Hello!", "", [], ())


WORD = re.compile(r"q\d+z")
ID = re.compile(r'(?:\[CALL_ID\]|_id": ?)\S*')
EVERYWHERE = [*ANSWERS, ("harmony", f"{THOUGHT}{CHANNEL_CALL}<|start|>assistant{FINAL}")]


def told(found: Read) -> str:
    """All that a reader gets."""
    return found.text + found.reasoning + str(found.calls)


def corrupted(answer: str, draw: random.Random) -> str:
    """Return an answer with words, deletions, repetitions and a cut at random places."""
    number = 0
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(answer) + 1)
        end = min(len(answer), place + draw.choice((1, 2, 8, 30)))
        kind = draw.choice(("word", "word", "delete", "repeat", "cut"))
        if kind == "word":
            number += 1
            answer = f"{answer[:place]}{draw.choice(('', ' '))}q{number}z{answer[place:]}"
        elif kind == "delete":
            answer = answer[:place] + answer[end:]
        elif kind == "repeat":
            answer = answer[:end] + answer[place:]
        elif place > 10:
            answer = answer[:place]
    return answer


@for_each(("name", "answer"), EVERYWHERE)
def test_no_character_of_a_corrupted_answer_is_lost(name: str, answer: str) -> None:
    check_corrupted(name, answer, 40)


@pytest.mark.gate
@for_each(("name", "answer"), EVERYWHERE)
def test_no_character_of_many_corrupted_answers_is_lost(name: str, answer: str) -> None:
    check_corrupted(name, answer, 400)


def check_corrupted(name: str, answer: str, rounds: int) -> None:
    """Read an answer with damages at random places, whole and in pieces."""
    formats = named(name, "harmony" if name == "harmony" else "think")
    draw = random.Random(f"{name}{rounds}")
    for _ in range(rounds):
        said = corrupted(f"Well. {answer} So?", draw)
        found = read(formats, said)
        words = set(WORD.findall(ID.sub("", said)))
        assert words <= set(WORD.findall(told(found))), said
        if not found.calls and not found.reasoning and name != "harmony":
            assert "".join(found.text.split()) == "".join(said.split()), said
        assert read(formats, said, draw.randint(1, 9)) == found, said


def test_a_complete_call_stays_one_where_what_follows_is_malformed() -> None:
    for name, answer, text in (
        ("granite", f"<|tool_call|>[{OBJECT}, oh", ", oh"),
        ("llama", f"<|python_tag|>{OBJECT}; oh", "; oh"),
        ("lfm2", f"<|tool_call_start|>[weather({WORDS}), oh", ", oh"),
        ("mistral", f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]", "[TOOL_CALLS]"),
    ):
        found = in_pieces(named(name), answer)
        assert (found.text, found.calls) == (text, [("weather", PARIS)]) and len(found.errors) == 1


def test_members_that_would_be_lost_make_a_call_malformed() -> None:
    qwen = named("qwen")
    for member in ('"args": {"city": "Rome"}', '"note": "hi"', '"id": "I say so"', '"name": "b"'):
        answer = f'<tool_call>{{"name": "weather", {member}}}</tool_call>'
        found = in_pieces(qwen, answer)
        assert found.text == answer and not found.calls and len(found.errors) == 1
    for member in ('"id": "a-1"', '"type": "function"', '"index": 0', '"call_id": null'):
        answer = f'<tool_call>{{{member}, "name": "weather", "arguments": {{}}}}</tool_call>'
        assert in_pieces(qwen, answer) == Read("", "", [("weather", {})], ())


def test_a_bare_call_is_one_only_of_a_tool_that_there_is() -> None:
    llama = named("llama")
    assert in_pieces(llama, OBJECT).calls == [("weather", PARIS)]
    for text in ('{"name": "nobody", "parameters": {}}', '{"a": [1, 2]} is JSON.', "{", "Hi {}"):
        assert in_pieces(llama, text) == Read(text, "", [], ())


@for_each(
    ("text", "reason"),
    [
        ('<tool_call>{"name": "weather", "arguments": {"a" 1}}</tool_call> more', "no JSON"),
        ("<tool_call>oh no</tool_call>", "should follow"),
        ('<tool_call>{"name": "weather", "arguments": [1]}', "no JSON object"),
        ('<tool_call>{"arguments": {}}', "no name"),
        ('<tool_call>{"name": "weather", "argu', "ended within"),
        ('<tool_call>{"name": 1}', "no text"),
        ('<tool_call>{"name": "weather", "arguments": {"a": 1]}', "closes nothing"),
    ],
)
def test_malformed_calls_are_text_and_an_error(text: str, reason: str) -> None:
    found = in_pieces(named("qwen"), text)
    assert found.text == text and not found.calls
    assert len(found.errors) == 1 and reason in found.errors[0]


def test_call_after_a_malformed_one_is_read() -> None:
    found = in_pieces(named("qwen"), f"<tool_call>no</tool_call><tool_call>{OBJECT}</tool_call>")
    assert found.calls == [("weather", PARIS)] and len(found.errors) == 1


@pytest.mark.parametrize("name", ["qwen", "granite", "mistral", "deepseek"])
def test_one_call_is_enough(name: str) -> None:
    answer = dict(ANSWERS)[name]
    for step in (1, 3, 1000):
        found = read(named(name), f"Hm {answer} and more", step, is_single=True)
        assert found.calls == [("weather", PARIS)] and found.text == "Hm"


def test_reasoning_that_the_prompt_has_opened() -> None:
    found = in_pieces(named(reasoning="think"), "\nSo.\n</think>\n\nYes.", in_reasoning=True)
    assert (found.reasoning, found.text) == ("So.", "Yes.")
    found = in_pieces(named(reasoning="think"), "It goes on", in_reasoning=True)
    assert (found.reasoning, found.text) == ("It goes on", "")


@given(st.text(alphabet='<>think/ \nab{}[]"', max_size=40))
def test_text_without_reasoning_or_calls_is_unchanged(text: str) -> None:
    formats = named("qwen", "think")
    if "<think>" not in text:
        assert in_pieces(formats, text).text == text


@for_each("name", BY_FORMAT)
def test_formats_are_found_in_templates(name: str) -> None:
    found = find_formats({"default": PLAIN, "tool_use": BY_FORMAT[name]})
    assert found.tools is not None and found.tools.name == name


def test_formats_are_named_or_switched_off() -> None:
    assert find_formats(None) == find_formats(PLAIN) == ChatFormats()
    assert find_formats(THINKING).reasoning is not None
    assert find_formats(THINKING, NONE, NONE) == ChatFormats()
    assert len({each.name for each in TOOL_FORMATS}) == len(TOOL_FORMATS)
    with pytest.raises(InvalidRequestError, match="tool_format.*qwen"):
        find_formats(PLAIN, "qwem")
