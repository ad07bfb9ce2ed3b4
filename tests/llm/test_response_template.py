"""A response template of the tokenizer reads the answers of a stream."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen import AsyncLLM, InvalidRequestError, ToolCall
from tests.doubles.models import TableModel, byte_tokenizer
from tests.llm.test_tools import TOOLS, USER
from tests.text.tool_calls.templates import QWEN, template

pytestmark = pytest.mark.anyio

OWN = template(
    "'«' + call.function.name + '|' + (call.function.arguments|tojson) + '»'",
    answer="{%- if add_generation_prompt %}{{ '<start>assistant:(' }}{%- endif %}",
)
"""A template that writes calls as no known format does, and opens the reasoning."""
DECLARED: dict[str, Any] = {
    "start_anchor": "<start>assistant:",
    "fields": {
        "reasoning_content": {"open": "(", "close": ")"},
        "tool_calls": {
            "open_pattern": r"«(?P<name>\w+)\|",
            "close": "»",
            "repeats": True,
            "content": "json",
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": "<end>"},
    },
}


def engine(script: str, chat_template: str = OWN, **options: Any) -> AsyncLLM:
    """An engine that answers by a script, with a declaration of its own."""
    tokenizer = byte_tokenizer(chat_template=chat_template)
    tokenizer.response_template = DECLARED
    ids = tokenizer.apply_chat_template(
        USER, add_generation_prompt=True, tools=options.pop("tools", None)
    )
    model = TableModel(script=script, prompt_length=len(ids), context_length=2048)
    return AsyncLLM(model, tokenizer=tokenizer, **options)


async def test_reasoning_text_and_calls_come_as_declared() -> None:
    script = 'Let me think.) Well: «weather|{"city": "Paris"}»<end>'
    async with (
        engine(script, tools=TOOLS) as llm,
        llm.stream(USER, tools=TOOLS) as stream,
    ):
        events = [event async for event in stream.events()]
    result = stream.result
    (call,) = result.tool_calls
    assert call == ToolCall(call.id, "weather", '{"city": "Paris"}')
    assert (result.text, result.reasoning) == ("Well:", "Let me think.")
    assert "".join(event.text for event in events) == "Well:"
    assert "".join(event.reasoning for event in events) == "Let me think."
    assert len([event for event in events if event.reasoning]) > 5
    assert result.usage.reasoning_tokens >= len("Let me think.)")


async def test_malformed_call_is_text_and_an_error() -> None:
    async with engine("Hm)«weather|{oh»", tools=TOOLS) as llm:
        found = await llm.generate(USER, tools=TOOLS)
    assert found.text == "«weather|{oh»" and not found.tool_calls
    assert len(found.samples[0].tool_errors) == 1


async def test_reasoning_is_read_without_tools_too() -> None:
    async with engine("Hm) Hi<end>") as llm:
        found = await llm.generate(USER)
        assert (found.text, found.reasoning) == ("Hi", "Hm")
        whole = await llm.generate(USER, separate_reasoning=False)
        assert whole.text == "Hm) Hi" and not whole.reasoning


async def test_calls_that_nothing_says_how_to_write_are_not_forced() -> None:
    async with engine("Hm)", tools=TOOLS) as llm:
        with pytest.raises(InvalidRequestError, match="response_template"):
            await llm.generate(USER, tools=TOOLS, tool_choice="required")
        strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
        with pytest.raises(InvalidRequestError, match="response_template"):
            await llm.generate(USER, tools=strict)


async def test_named_format_comes_before_the_template() -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    async with engine(call, QWEN, tools=TOOLS, tool_format="qwen") as llm:
        found = await llm.generate(USER, tools=TOOLS)
    assert [each.arguments for each in found.tool_calls] == ['{"city": "Rome"}']


async def test_malformed_template_is_refused_at_load() -> None:
    tokenizer = byte_tokenizer(chat_template=QWEN)
    tokenizer.response_template = {"start_anchor": "a", "fields": {"x": {"open_pattern": "("}}}
    with pytest.raises(InvalidRequestError, match="fields.x.open_pattern"):
        async with AsyncLLM(TableModel(), tokenizer=tokenizer):
            pass
