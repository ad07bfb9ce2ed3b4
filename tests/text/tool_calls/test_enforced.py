"""Calls whose arguments are no JSON: enforced, read back, and valid by the schema of their tool."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.llm.llm import AsyncLLM
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.doubles.models import TableModel, byte_tokenizer
from tests.models.build import random_config, random_model
from tests.text.tool_calls.templates import BY_FORMAT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.types import Sample

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "Hi"}]
FORMATS = ("qwen_coder", "glm", "gemma")
MARKERS = {
    "qwen": ("<tool_call>", "</tool_call>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]"),
    "granite": ("<|tool_call|>",),
    "qwen_coder": ("<tool_call>", "</tool_call>", "<parameter=", "</parameter>"),
    "glm": (
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    "gemma": ("<|tool_call>", "<tool_call|>", '<|"|>'),
}


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: what is asked here has no loop."""
    return "asyncio"


def arguments(*required: str, **properties: Any) -> dict[str, Any]:
    """The schema of arguments; without names all of them are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
        "additionalProperties": False,
    }


NODE = arguments(
    value={"type": "integer", "maximum": 5},
    next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
)
SCHEMAS: list[dict[str, Any]] = [
    arguments(
        colour={"enum": ["red", "gr ün\n<b>", 'a"b']},
        many={"type": "integer", "exclusiveMinimum": 0, "maximum": 9},
        text={"type": "string", "minLength": 1, "maxLength": 6},
        ratio={"type": "number", "minimum": -1, "exclusiveMaximum": 2.5},
    ),
    arguments(
        "b",
        a={"type": "boolean", "title": "A"},
        b={"type": "string", "maxLength": 4},
        c={"type": "null"},
        d={"type": "string", "const": "x y"},
    ),
    arguments(
        tags={"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
        inner=arguments("x", x={"type": "integer"}, y={"type": ["string", "null"], "maxLength": 3}),
        pair={"type": "array", "items": {"enum": [0, 1]}, "minItems": 2, "maxItems": 2},
    ),
    arguments(
        either={"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        one={"enum": [1, "a", None, [1, "b"], {"k": "v"}]},
    ),
    {"$defs": {"node": NODE}, **arguments(list={"$ref": "#/$defs/node"})},
    arguments(),
]


def tool(schema: dict[str, Any], name: str = "do_it", **more: Any) -> dict[str, Any]:
    """A tool of such arguments."""
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def check(sample: Sample, schemas: dict[str, dict[str, Any]]) -> int:
    """All is calls, each as its tool declares it; return how many there are."""
    assert not sample.text and not sample.tool_errors
    for call in sample.tool_calls:
        value = json.loads(call.arguments)
        jsonschema_rs.validator_for(schemas[call.name]).validate(value)
    return len(sample.tool_calls)


async def ask(
    name: str,
    schemas: Sequence[dict[str, Any]],
    seeds: Sequence[int],
    *,
    special: bool | None = None,
    named: bool = False,
) -> int:
    """Answer with calls of each; return how many are complete."""
    count = 0
    tokenizer = byte_tokenizer(chat_template=BY_FORMAT[name])
    if special is not None:
        tokenizer.add_tokens(list(MARKERS[name]), special_tokens=special)
    choice: Any = {"type": "function", "function": {"name": "do_it"}} if named else "required"
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "eos_token_id": 256}
    model = PreTrainedModel(random_model(random_config("llama", **sizes), 1))
    async with AsyncLLM(model, tokenizer=tokenizer) as llm:
        for schema in schemas:
            for seed in seeds:
                completion = await llm.generate(
                    USER,
                    tools=[tool(schema)],
                    tool_choice=choice,
                    seed=seed,
                    temperature=1.5,
                    max_new_tokens=400,
                    parallel_tool_calls=seed % 2 == 1,
                )
                assert completion.finish_reason in ("stop", "length")
                if completion.finish_reason == "stop":
                    count += bool(check(completion.samples[0], {"do_it": schema}))
    return count


@pytest.mark.parametrize("name", FORMATS)
async def test_every_finished_call_is_valid(name: str) -> None:
    assert await ask(name, SCHEMAS, [0, 2]) >= len(SCHEMAS)


@pytest.mark.parametrize("name", [*FORMATS, "qwen"])
async def test_markers_may_be_tokens(name: str) -> None:
    """Special ones, or added ones that are not, as those of Qwen."""
    for special in (False, True):
        assert await ask(name, SCHEMAS[:2], [0], special=special) >= 1
        assert await ask(name, SCHEMAS[:2], [0], special=special, named=True) >= 1


SHORT = arguments(city={"enum": ["Rome", "Paris"]})


async def test_calls_are_complete_after_the_end_of_one() -> None:
    for name in ("qwen", "qwen_coder", "glm", "mistral", "granite"):
        for special in (None, False):
            seeds = [0, 2, 4]
            named = await ask(name, [SHORT], seeds, special=special, named=True)
            assert named == len(seeds)  # one call, and the end
            assert await ask(name, [SHORT], seeds, special=special)


@pytest.mark.parametrize("name", FORMATS)
async def test_a_strict_call_is_free_up_to_its_marker(name: str) -> None:
    calls = {
        "qwen_coder": "<tool_call>\n<function=pick>\n<parameter=colour>\ngreen\n</parameter>",
        "glm": "<tool_call>pick\n<arg_key>colour</arg_key>\n<arg_value>green</arg_value>",
        "gemma": '<|tool_call>call:pick{colour:<|"|>green<|"|>}<tool_call|>',
    }
    strict = tool(arguments(colour={"enum": ["red", "blue"]}), "pick", strict=True)
    free = tool({"type": "object", "properties": {"colour": {}}}, "pick_freely")
    tokenizer = byte_tokenizer(chat_template=BY_FORMAT[name])
    prompt = tokenizer.apply_chat_template(USER, tools=[strict, free], add_generation_prompt=True)
    for call in (calls[name], calls[name].replace("pick", "pick_freely")):
        model = TableModel(script="So: " + call, prompt_length=len(prompt))
        async with AsyncLLM(model, tokenizer=tokenizer) as llm:
            found = await llm.generate(
                USER, tools=[strict, free], max_new_tokens=300, parallel_tool_calls=False
            )
            assert found.text.strip() == "So:" and found.finish_reason == "stop"
            (told,) = found.tool_calls
            colour = json.loads(told.arguments)["colour"]
            assert colour == "green" if told.name == "pick_freely" else colour in ("red", "blue")


async def test_a_text_may_hold_whatever_does_not_end_it() -> None:
    """JSON may even hold the tag itself, within a text."""
    schema = arguments(text={"type": "string"}, list={"type": "array", "items": {}})
    script = (
        "<tool_call>\n<function=do_it>\n<parameter=text>\n\n<b> </function>\n\n</parameter>\n"
        '<parameter=list>\n["</parameter>", "\\"</parameter>"]\n</parameter>\n</function>\n'
        "</tool_call>"
    )
    tokenizer = byte_tokenizer(chat_template=BY_FORMAT["qwen_coder"])
    tools = [tool(schema)]
    prompt = tokenizer.apply_chat_template(USER, tools=tools, add_generation_prompt=True)
    model = TableModel(script=script, prompt_length=len(prompt))
    async with AsyncLLM(model, tokenizer=tokenizer) as llm:
        found = await llm.generate(USER, tools=tools, tool_choice="required", max_new_tokens=300)
    (call,) = found.tool_calls
    assert json.loads(call.arguments) == {
        "text": "\n<b> </function>\n",
        "list": ["</parameter>", '"</parameter>'],
    }


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("*", {"type": "array"}, "`type`"),
    ("*", {"anyOf": [{"type": "object"}]}, "`anyOf`"),
    ("*", {**arguments(a={}), "minProperties": 1}, "`minProperties`"),
    ("*", {"type": "object", "properties": {"a": {}}, "required": ["b"]}, "`required`.*'b'"),
    ("*", arguments(a={"type": "string", "pattern": "^a$"}), "'a': `pattern`"),
    ("*", arguments(a={"type": "string", "format": "date"}), "'a': `format`"),
    ("*", arguments(a={"type": "string", "not": {"const": "x"}}), "'a': `not`"),
    ("*", arguments(a={"enum": []}), "`enum`"),
    ("*", arguments(a={"type": "string", "enum": [1]}), "`enum` or `const`"),
    ("*", arguments(a={"type": "string", "minLength": 3, "maxLength": 2}), "`maxLength`"),
    ("*", arguments(a=False), "'a'"),
    ("qwen_coder", arguments(**{"a>b": {}}), "'a>b'"),
    ("qwen_coder", arguments(a={"enum": ["</parameter>"]}), "</parameter>"),
    ("glm", arguments(a={"enum": ["\nx"]}), "tags"),
    ("gemma", arguments(**{"a:b": {}}), "'a:b'"),
    ("gemma", arguments(a={"type": "array", "uniqueItems": True}), "`uniqueItems`"),
    ("gemma", arguments(a={"enum": ['<|"|>']}), "mark"),
    ("gemma", arguments(a={"$ref": "#/$defs/x"}), "leads nowhere"),
    ("gemma", arguments(a={"oneOf": [{}]}), "`oneOf`"),
]


async def test_unenforceable_tool_schemas_are_refused_by_name() -> None:
    for name in FORMATS:
        tokenizer = byte_tokenizer(chat_template=BY_FORMAT[name])
        async with AsyncLLM(TableModel(), tokenizer=tokenizer) as llm:
            for which, schema, match in REFUSED:
                if which in ("*", name):
                    ways: list[dict[str, Any]] = [{"tool_choice": "required"}, {}]
                    for more in ways:
                        asked = tool(schema, strict=not more)
                        with pytest.raises(InvalidRequestError, match=f"do_it.*{match}"):
                            await llm.generate(USER, tools=[asked], **more)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("special", [None, False, True])
async def test_many_calls_are_valid(name: str, special: bool | None) -> None:
    rng = random.Random(3)
    schemas = [random_arguments(rng) for _ in range(60)]
    assert await ask(name, SCHEMAS + schemas, range(2), special=special) > 40


def random_arguments(rng: random.Random) -> dict[str, Any]:
    """Arguments of some tool."""
    names = rng.sample(["a", "b-c", "größe", "x.y", "n 1", "tags"], rng.randrange(1, 4))
    required = [name for name in names if rng.random() < 0.6]
    properties = {name: _random_value(rng, 2) for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        **({"additionalProperties": False} if rng.random() < 0.5 else {}),
    }


def _random_value(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(4)
    simple: list[dict[str, Any]] = [
        {"type": "string", "minLength": low, "maxLength": low + rng.randrange(9)},
        {"type": "string", "enum": rng.sample(["a", "<b>", "ü ü", '"', "\\n", "{}"], 3)},
        {"type": "integer", "minimum": low, "maximum": low + 40},
        {"type": "number", "minimum": -1.5, "exclusiveMaximum": low + 0.25},
        {"type": "boolean"},
        {"enum": [1, "1", None, True, 2.5][low:]},
        {"const": rng.choice([0, "x", None, False])},
        {"type": ["null", "integer"], "maximum": 99, "minimum": 0},
    ]
    nested: list[dict[str, Any]] = [
        {"anyOf": [rng.choice(simple), {"type": "null"}]},
        {"type": "array", "items": rng.choice(simple), "minItems": low % 2, "maxItems": 3},
        arguments(*(["k"] if low else []), k=rng.choice(simple), l=rng.choice(simple)),
    ]
    return rng.choice(nested if depth and rng.random() < 0.4 else simple)


@pytest.mark.parametrize(
    ("name", "said", "calls"),
    [
        ("llama", '{"name": "pick", "parameters": {"colour": "green"}}', 1),
        ("llama", ' \n{"name": "pick", "parameters": {"colour": 5}}', 1),
        ("llama", '<|python_tag|>{"name": "pick", "parameters": {"colour": 5}}', 1),
        ("llama", 'Green {"name": "pick", "parameters": {"colour": 5}}', 0),
        *(
            ("harmony", f'{head}<|message|>{{"colour": "green"}}<|call|>', 1)
            for head in (
                "<|channel|>commentary to=functions.pick <|constrain|>json",
                "<|channel|>commentary to=functions.pick",
                "<|channel|>analysis to=functions.pick json",
                "<|start|>assistant to=functions.pick<|channel|>commentary json",
                " to=functions.pick<|channel|>commentary json",
                "<|channel|>analysis<|message|>Hm.<|end|> to=functions.pick json",
            )
        ),
        ("granite", '<tool_call>[{"name": "pick", "arguments": {"colour": "green"}}]', 1),
        ("granite", '<|tool_call|>[{"name": "pick", "arguments": {"colour": "green"}}]', 1),
    ],
)
async def test_strict_call_is_enforced_in_every_way_to_begin_one(
    name: str, said: str, calls: int
) -> None:
    strict = tool(arguments(colour={"enum": ["red", "blue"]}), "pick", strict=True)
    tokenizer = byte_tokenizer(chat_template=BY_FORMAT[name])
    prompt = tokenizer.apply_chat_template(USER, tools=[strict], add_generation_prompt=True)
    model = TableModel(script=said, prompt_length=len(prompt))
    async with AsyncLLM(model, tokenizer=tokenizer, tool_format=name) as llm:
        found = await llm.generate(
            USER, tools=[strict], max_new_tokens=300, parallel_tool_calls=False
        )
    assert len(found.tool_calls) == calls and not found.samples[0].tool_errors
    for call in found.tool_calls:
        assert json.loads(call.arguments)["colour"] in ("red", "blue")
    assert found.text == ("" if calls else said)
