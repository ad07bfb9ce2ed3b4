"""Tools and reasoning in a stream: into the template, and out of the text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncgen import AsyncLLM, InvalidRequestError, ToolCall
from tests.cases import for_each
from tests.doubles.models import TableModel, byte_tokenizer
from tests.text.tool_calls.templates import BY_FORMAT, LLAMA, PLAIN, QWEN, THINKING

pytestmark = pytest.mark.anyio


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "How it is.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
USER = [{"role": "user", "content": "How is Paris?"}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'


def prompt_ids(template: str, messages: list[Any] | None = None, **variables: Any) -> list[int]:
    """Ids of a conversation."""
    tokenizer = byte_tokenizer(chat_template=template)
    ids: list[int] = tokenizer.apply_chat_template(
        messages or USER, add_generation_prompt=True, **variables
    )
    return ids


def scripted(script: str, template: str = QWEN, **variables: Any) -> AsyncLLM:
    """An engine that answers one prompt by a script."""
    length = len(prompt_ids(template, **variables))
    model = TableModel(script=script, prompt_length=length, context_length=2048)
    return AsyncLLM(model, tokenizer=byte_tokenizer(chat_template=template))


async def test_a_call_comes_in_pieces_and_whole() -> None:
    async with (
        scripted(f"Let me see.\n{CALL}", tools=TOOLS) as llm,
        llm.stream(USER, tools=TOOLS) as stream,
    ):
        events = [event async for event in stream.events()]
    pieces = [piece for event in events for piece in event.tool_calls]
    assert pieces[0].name == "weather" and pieces[0].id and len(pieces) > 10
    (call,) = stream.result.tool_calls
    assert call == ToolCall(pieces[0].id, "weather", '{"city": "Paris"}')
    assert call.arguments == "".join(piece.arguments for piece in pieces)
    assert "".join(event.text for event in events) == stream.result.text == "Let me see."
    assert stream.result.finish_reason == "stop"
    assert bytes(stream.result.token_ids[:-1]).decode() == f"Let me see.\n{CALL}"


async def test_the_same_request_names_its_calls_alike() -> None:
    ids = []
    async with scripted(CALL * 2, tools=TOOLS) as llm:
        for seed in (1, 1, 2):
            completion = await llm.generate(USER, tools=TOOLS, seed=seed)
            ids.append([call.id for call in completion.tool_calls])
        assert ids[0] == ids[1] != ids[2] and len(set(ids[0])) == 2
        assert all(len(each) == 9 and each.isalnum() for each in ids[0])


async def test_one_call_ends_the_answer_where_one_is_wanted() -> None:
    async with scripted(CALL * 2 + "Hi", tools=TOOLS) as llm:
        both = await llm.generate(USER, tools=TOOLS, seed=1)
        one = await llm.generate(USER, tools=TOOLS, seed=1, parallel_tool_calls=False)
    assert len(both.tool_calls) == 2 and both.text == "Hi"
    assert one.tool_calls == both.tool_calls[:1] and one.text == ""
    assert one.finish_reason == "stop" and one.stop_reason is None
    assert len(one.token_ids) <= len(CALL)


async def test_without_tools_everything_is_text() -> None:
    async with scripted(CALL) as llm:
        given: list[dict[str, Any]] = [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}]
        for more in given:
            completion = await llm.generate(USER, **more)
            assert completion.text == CALL and not completion.tool_calls


async def test_a_malformed_call_is_text_and_an_error() -> None:
    async with scripted("<tool_call>oh no", tools=TOOLS) as llm:
        completion = await llm.generate(USER, tools=TOOLS)
    (sample,) = completion.samples
    assert sample.text == "<tool_call>oh no" and not sample.tool_calls
    assert len(sample.tool_errors) == 1


async def test_stop_strings_end_the_text_and_look_into_nothing_else() -> None:
    async with scripted(
        "<think>a stop b</think>c stop d", THINKING.replace("'<think>'", "''")
    ) as llm:
        completion = await llm.generate(USER, stop="stop")
    assert (completion.text, completion.reasoning) == ("c ", "a stop b")
    assert completion.stop_reason == "stop"


async def test_messages_with_calls_and_results_are_rendered() -> None:
    call = {"id": "a", "type": "function"}
    arguments = {"city": "Rome"}
    messages: list[dict[str, Any]] = [
        *USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {**call, "function": {"name": "weather", "arguments": json.dumps(arguments)}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "Fine."},
    ]
    async with scripted("Hi") as llm:
        stream = llm.stream(messages, max_new_tokens=1)
        async with stream:
            text = llm.tokenizer.decode(stream.prompt_ids)
        assert '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>' in text
        assert "tool:Fine." in text
        given = json.loads(json.dumps(messages))
        given[1]["tool_calls"][0]["function"]["arguments"] = "{oh"
        with pytest.raises(InvalidRequestError, match=r"tool_calls\[0\].function.arguments"):
            await llm.generate(given)
        assert await llm.count_tokens(USER, tools=TOOLS) == len(prompt_ids(QWEN, tools=TOOLS))


@for_each(
    ("template", "params", "reason"),
    [
        (PLAIN, {"tools": TOOLS}, "tools.*tool_format"),
        (PLAIN, {"enable_thinking": True}, "enable_thinking"),
        (PLAIN, {"reasoning_effort": "low"}, "reasoning_effort"),
        (PLAIN, {"max_reasoning_tokens": 3}, "max_reasoning_tokens.*reasoning_format"),
        (QWEN, {"tool_choice": "required"}, "tool_choice.*needs"),
        (QWEN, {"tools": [{"type": "web"}]}, "function"),
        (QWEN, {"tools": TOOLS * 2}, "name of its own"),
        (QWEN, {"tools": TOOLS, "tool_choice": "often"}, "tool_choice"),
        (THINKING, {"enable_thinking": True, "reasoning_effort": "none"}, "contradicts"),
        (QWEN, {"stop_token_ids": [10**6]}, "stop_token_ids"),
        (QWEN, {"stop_token_ids": [True]}, "stop_token_ids"),
    ],
)
async def test_unsupported_tool_requests_are_refused_with_reason(
    template: str, params: dict[str, Any], reason: str
) -> None:
    async with scripted("Hi", template) as llm:
        with pytest.raises(InvalidRequestError, match=f"(?s){reason}"):
            await llm.generate(USER, **params)


async def test_a_text_takes_nothing_that_is_said_to_a_template() -> None:
    given = {"tools": TOOLS, "enable_thinking": False, "max_reasoning_tokens": 0}
    async with scripted("Hi") as llm:
        for name, value in given.items():
            with pytest.raises(InvalidRequestError, match=f"(?s){name}.*only messages"):
                await llm.generate("Hi", **{name: value})  # type: ignore[arg-type]


async def test_formats_may_be_named() -> None:
    tokenizer = byte_tokenizer(chat_template="{{ tools }}" + PLAIN)
    model = TableModel(script=CALL, prompt_length=len("None" + USER[0]["content"]))
    async with AsyncLLM(model, tokenizer=tokenizer, tool_format="qwen") as llm:
        assert (await llm.generate(USER)).text == CALL
    with pytest.raises(InvalidRequestError, match="tool_format"):
        AsyncLLM(model, tokenizer=tokenizer, tool_format="qwem")


async def test_reasoning_is_separate_from_the_text() -> None:
    async with scripted("I see.\n</think>\n\nYes.", THINKING) as llm:
        async with llm.stream(USER) as stream:
            events = [event async for event in stream.events()]
        completion = stream.result
        assert (completion.reasoning, completion.text) == ("I see.", "Yes.")
        assert "".join(event.reasoning for event in events) == "I see."
        assert completion.usage.reasoning_tokens == len("I see.\n</think>")
        whole = await llm.generate(USER, separate_reasoning=False)
        assert whole.text == "I see.\n</think>\n\nYes." and whole.usage.reasoning_tokens == 0
        off = await llm.generate(USER, enable_thinking=False)
        assert off.reasoning == ""
        assert off.usage.prompt_tokens == len(prompt_ids(THINKING, enable_thinking=False))
        same = await llm.generate(USER, reasoning_effort="none")
        assert same.usage.prompt_tokens == off.usage.prompt_tokens


@for_each("budget", [0, 1, 5])
@for_each("sampled", [False, True])
async def test_reasoning_ends_where_its_budget_is_used_up(budget: int, sampled: bool) -> None:
    tokenizer = byte_tokenizer(chat_template=THINKING)
    params: dict[str, Any] = {"max_reasoning_tokens": budget, "max_new_tokens": 40, "seed": 3}
    params |= {"temperature": 1.0, "top_k": 5} if sampled else {"do_sample": False}
    async with AsyncLLM(TableModel(), tokenizer=tokenizer) as llm:
        async with llm.stream(USER, **params) as stream:
            async for _ in stream.events():
                pass
        ids = stream.result.token_ids
        assert bytes(ids[budget : budget + 8]) == b"</think>" and len(ids) == 40
        assert stream.result.usage.reasoning_tokens == budget + 8
        free = await llm.generate(USER, **{**params, "max_reasoning_tokens": None})
        assert free.token_ids[:budget] == ids[:budget]
        for at in (budget, budget + 3, budget + 8):
            rest = await llm.generate(USER, **params, generated_ids=ids[:at])
            assert rest.token_ids == ids[at:]


async def test_a_budget_that_is_not_used_up_changes_nothing() -> None:
    async with scripted("So.</think>Yes, all of it is said.", THINKING) as llm:
        for budget in (3, 4, 100):
            completion = await llm.generate(USER, max_reasoning_tokens=budget)
            assert completion.text == "Yes, all of it is said."


async def test_continuing_after_tokens_reads_on() -> None:
    script = f"I see.</think>Hm\n{CALL}"
    async with scripted(script, THINKING, tools=TOOLS) as llm:
        whole = await llm.generate(USER, tools=TOOLS, seed=1)
        for at in (3, 10, 16, 20, 60):
            ids = whole.token_ids[:at]
            async with llm.stream(USER, tools=TOOLS, seed=1, generated_ids=ids) as stream:
                events = [event async for event in stream.events()]
            assert stream.result.usage.reasoning_tokens == whole.usage.reasoning_tokens
            pieces = [piece for event in events for piece in event.tool_calls]
            assert whole.tool_calls[0].arguments.endswith("".join(p.arguments for p in pieces))
            assert {piece.id for piece in pieces} <= {whole.tool_calls[0].id, None}
            assert whole.text.endswith(stream.result.text)


async def test_stop_token_ids_end_beside_the_models_own() -> None:
    async with scripted("One. Two.") as llm:
        completion = await llm.generate(USER, stop_token_ids=[ord(".")])
        assert completion.text == "One." and completion.stop_reason == ord(".")
        assert (await llm.generate(USER)).text == "One. Two."


async def test_the_last_message_is_gone_on_with() -> None:
    messages = [*USER, {"role": "assistant", "content": "It is"}]
    async with (
        scripted("fine.", LLAMA) as llm,
        llm.stream(messages, continue_final_message=True, max_new_tokens=1) as stream,
    ):
        assert llm.tokenizer.decode(stream.prompt_ids).endswith("assistant:It is")


def tool(name: str, *, strict: bool = False, **properties: Any) -> dict[str, Any]:
    """A tool whose arguments are all required."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters, "strict": strict},
    }


COUNT = tool("count", many={"type": "integer", "minimum": 1, "maximum": 9})
PICK = tool("pick", colour={"enum": ["red", "blue"]})


@for_each("name", ["qwen", "llama", "mistral", "mistral_list", "granite"])
@for_each("choice", ["required", "pick"])
async def test_calls_are_enforced(name: str, choice: str) -> None:
    pytest.importorskip("llguidance")
    tokenizer = byte_tokenizer(chat_template=BY_FORMAT[name])
    named = {"type": "function", "function": {"name": choice}}
    wanted = choice if choice == "required" else named
    async with AsyncLLM(TableModel(seed=1), tokenizer=tokenizer) as llm:
        for seed in range(3):
            completion = await llm.generate(
                USER,
                tools=[COUNT, PICK],
                tool_choice=wanted,
                seed=seed,
                temperature=1.5,
                max_new_tokens=300,
                parallel_tool_calls=False,
            )
            (sample,) = completion.samples
            assert sample.finish_reason == "stop" and not sample.text and not sample.tool_errors
            (call,) = sample.tool_calls
            value = json.loads(call.arguments)
            assert call.name in ("count", "pick") and (choice == "required" or call.name == choice)
            assert 1 <= value["many"] <= 9 if call.name == "count" else value["colour"]


async def test_call_is_enforced_after_reasoning() -> None:
    pytest.importorskip("llguidance")
    tokenizer = byte_tokenizer(chat_template=THINKING)
    async with AsyncLLM(TableModel(seed=1), tokenizer=tokenizer) as llm:
        completion = await llm.generate(
            USER,
            tools=[PICK],
            tool_choice="required",
            max_reasoning_tokens=5,
            parallel_tool_calls=False,
            max_new_tokens=200,
        )
        assert len(completion.tool_calls) == 1 and completion.finish_reason == "stop"
        assert completion.usage.reasoning_tokens == 5 + len("</think>") and not completion.text
        shaped = await llm.generate(USER, choice=["yes", "no"], max_reasoning_tokens=5)
        assert shaped.text in ("yes", "no") and shaped.parsed == shaped.text
        whole = await llm.generate(
            USER, choice=["yes", "no"], max_reasoning_tokens=5, separate_reasoning=False
        )
        assert "</think>" in whole.text and whole.parsed in ("yes", "no")


async def test_strict_calls_are_free_up_to_their_marker() -> None:
    pytest.importorskip("llguidance")
    strict = [tool("pick", strict=True, colour={"enum": ["red", "blue"]})]
    call = '<tool_call>\n{"name": "pick", "arguments": {"colour": "green"}}\n</tool_call>'
    async with scripted("All is free. " + call, tools=strict) as llm:
        completion = await llm.generate(USER, tools=strict, max_new_tokens=300)
        assert completion.text == "All is free." and completion.finish_reason == "stop"
        assert json.loads(completion.tool_calls[0].arguments)["colour"] in ("red", "blue")
    async with scripted("No call at all.", tools=strict) as llm:
        completion = await llm.generate(USER, tools=strict)
        assert completion.text == "No call at all." and completion.finish_reason == "stop"


async def test_calls_stand_beside_a_json_answer() -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    for script in ('{"a": 1}', '<tool_call>\n{"name": "pick", "arguments": {"colour": "red"}}'):
        async with scripted(script, tools=[PICK]) as llm:
            completion = await llm.generate(
                USER, tools=[PICK], json_schema=schema, parallel_tool_calls=False
            )
            assert completion.finish_reason == "stop"
            assert (completion.parsed == {"a": 1}) != bool(completion.tool_calls)
            given: dict[str, Any] = {"tools": [PICK], "json_schema": schema}
            for more in ({"tool_choice": "required"}, {"json_schema": None, "regex": "a+"}):
                with pytest.raises(InvalidRequestError, match="shape"):
                    await llm.generate(USER, **{**given, **more})


def with_special(template: str, *tokens: str) -> Any:
    """The tokenizer of bytes, with further special tokens behind its own."""
    tokenizer = byte_tokenizer(chat_template=template)
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    return tokenizer


@for_each("choice", ["auto", "required"])
@for_each(
    ("name", "markers"),
    [
        ("mistral", ("[TOOL_CALLS]", "[ARGS]")),
        ("granite", ("<|tool_call|>",)),
        ("harmony", ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "<|end|>")),
    ],
)
async def test_markers_that_are_special_tokens(
    name: str, markers: tuple[str, ...], choice: str
) -> None:
    pytest.importorskip("llguidance")
    tokenizer = with_special(BY_FORMAT[name], *markers)
    answers = {
        "mistral": '[TOOL_CALLS]pick[ARGS]{"colour": "red"}',
        "granite": '<|tool_call|>[{"name": "pick", "arguments": {"colour": "red"}}]',
        "harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>"
        'commentary to=functions.pick <|constrain|>json<|message|>{"colour": "red"}',
    }
    asked = tokenizer.apply_chat_template(USER, tools=[PICK], add_generation_prompt=True)
    script = tokenizer.encode(answers[name])
    model = TableModel(script=script, prompt_length=len(asked), vocab_size=len(tokenizer))
    async with AsyncLLM(model, tokenizer=tokenizer) as llm:
        completion = await llm.generate(USER, tools=[PICK], tool_choice=choice, max_new_tokens=200)
        (call,) = completion.tool_calls
        assert (call.name, call.arguments) == ("pick", '{"colour": "red"}')
        assert completion.text == "" and completion.reasoning == (
            "Hm." if name == "harmony" else ""
        )
        assert list(completion.token_ids[: len(script)]) == script
        shown = await llm.generate(USER, tools=[PICK], tool_choice="none", max_new_tokens=5)
        assert not shown.tool_calls
