"""Prompts that are told before their continuations, with what each of their tokens is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen import TokenEvent, TokenLogprob
from asyncgen_apps.openai_http.echo import Echo
from asyncgen_apps.openai_http.response_schema import TextCompletion
from asyncgen_apps.openai_http.serializers import CompletionHead, CompletionSerializer
from tests.apps.openai_http.running import reference
from tests.cases import for_each
from tests.doubles.models import byte_tokenizer

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

PROMPT = "Once upon a time, a füchs 🦊"


def ask(demo: Running, prompt: object, **given: Any) -> list[Any]:
    """The choices of a reply, the same in one piece and streamed."""
    body = {
        "model": "demo",
        "prompt": prompt,
        "echo": True,
        "temperature": 0,
        "ignore_eos": True,
        **given,
    }
    whole = demo.post("/completions", body).json()
    TextCompletion.model_validate(whole, strict=True)
    choices: list[Any] = whole["choices"]
    told = {"include_usage": True}
    body |= {"stream": True, "stream_options": told}
    *lines, done = demo.post("/completions", body).events()
    assert done == "[DONE]"
    joined: dict[int, Any] = {}
    for chunk in lines:
        for choice in chunk["choices"]:
            own = joined.setdefault(choice["index"], {"text": "", "finish_reason": None})
            own["text"] += choice["text"]
            own["finish_reason"] = choice["finish_reason"] or own["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                own.setdefault(name, []).extend(values or [])
    for choice in choices:
        own = joined[choice["index"]]
        assert own["text"] == choice["text"]
        assert own["finish_reason"] == choice["finish_reason"]
        for name, values in (choice["logprobs"] or {}).items():
            assert own[name] == (values or [])
    assert lines[-1]["usage"] == whole["usage"]
    return choices


@for_each("as_ids", [False, True])
@for_each(("top", "new"), [(0, 0), (1, 1), (5, 7), (None, 3), (None, 0)])
def test_echo_returns_prompt_logprobs_of_the_engine(
    demo: Running, as_ids: bool, top: int | None, new: int
) -> None:
    tokenizer = demo.llm.tokenizer
    ids = tokenizer.encode_ids(PROMPT)
    [choice] = ask(demo, ids if as_ids else PROMPT, logprobs=top, max_tokens=new)
    given: Any = {"temperature": 0, "prompt_logprobs": top or 0, "max_new_tokens": new}
    given["eos_token_id"] = []
    expected = reference(demo, PROMPT, **given, top_logprobs=top or 0)
    assert choice["text"] == PROMPT + expected.text
    assert choice["finish_reason"] == expected.finish_reason == "length"
    if top is None:
        assert choice["logprobs"] is None
        return
    found = choice["logprobs"]
    entries = [*(expected.prompt_logprobs or ()), *(expected.logprobs or ())]
    assert len(entries) == len(ids) + new
    assert found["token_logprobs"] == [entry and entry.logprob for entry in entries]
    assert found["token_logprobs"][0] is None
    every = [*ids, *expected.token_ids]
    assert found["tokens"] == [tokenizer.decode([one]) for one in every]
    if top:
        assert found["top_logprobs"][0] is None
        for entry, told in zip(entries[1:], found["top_logprobs"][1:], strict=True):
            assert entry is not None
            assert max(told.values()) == entry.top[0].logprob
            assert told[entry.token] >= entry.logprob
    else:
        assert found["top_logprobs"] is None
    # A token begins where the complete characters before it end.
    for place, offset in enumerate(found["text_offset"]):
        before = tokenizer.decode(every[:place], skip_special_tokens=True)
        assert choice["text"][:offset] == before.rstrip("\ufffd")


def test_several_prompts_and_choices(demo: Running) -> None:
    prompts = ["A fox slept.", "It rained. The"]
    choices = ask(demo, prompts, logprobs=1, max_tokens=3, n=2)
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    for number, choice in enumerate(choices):
        prompt = prompts[number // 2]
        assert choice["text"].startswith(prompt)
        length = len(demo.llm.tokenizer.encode_ids(prompt))
        assert len(choice["logprobs"]["tokens"]) == length + 3
        assert choice["logprobs"]["text_offset"][length] == len(prompt)


def test_drawn_choices_of_one_prompt(demo: Running) -> None:
    choices = ask(demo, PROMPT, logprobs=0, max_tokens=4, n=3, temperature=1.0, seed=5)
    assert len({choice["text"] for choice in choices}) > 1
    count = len(choices[0]["logprobs"]["tokens"]) - 4
    first = [choice["logprobs"]["token_logprobs"][:count] for choice in choices]
    assert first[0] == first[1] == first[2]


def test_usage_counts_generated_tokens(demo: Running) -> None:
    body = {"model": "demo", "prompt": "abc", "echo": True, "logprobs": 0, "max_tokens": 0}
    usage = demo.post("/completions", body).json()["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["prompt_tokens"] > 0


@for_each(
    ("more", "param"),
    [
        ({"echo": False, "max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"generated_ids": [5]}, "echo"),
        ({"logprobs": 1, "num_beams": 2}, "echo"),
        ({"max_tokens": 0, "num_beams": 2}, "echo"),
        ({"max_tokens": 0, "min_tokens": 3}, "min_tokens"),
        ({"echo": 1}, "echo"),
        ({"suffix": "x"}, "suffix"),
    ],
    ids=str,
)
def test_refusals(demo: Running, more: dict[str, Any], param: str) -> None:
    body = {"model": "demo", "prompt": "abc", "echo": True, **more}
    got = demo.post("/completions", body)
    assert got.status == 400
    assert got.json()["error"]["param"] == param


def test_echo_of_a_conversation_is_refused(demo: Running) -> None:
    turns = [{"role": "user", "content": "hi"}]
    got = demo.post("/chat/completions", {"model": "demo", "messages": turns, "echo": True})
    assert (got.status, got.json()["error"]["param"]) == (400, "echo")


def test_long_prompts_come_in_pieces_that_join() -> None:
    text = "äb" * 300
    ids = list(text.encode())
    echo = Echo([text], 2, skips_special=True, goes_on=True)
    echo.begin([ids], byte_tokenizer())
    assert [one for one, _ in echo.pieces(1)] == [text]  # nothing is known of its tokens
    entries = (None, *[TokenLogprob(one, "?", -1.0) for one in ids[1:]])
    echo.note(0, TokenEvent(0, (), "", prompt_logprobs=entries))
    shape = CompletionSerializer(CompletionHead("id", 1, "demo"), logprobs=True, echo=echo)
    chunks: list[Any] = [one["choices"] for one in shape.prompt(1)]
    assert len(chunks) == -(-len(ids) // 256)
    assert "".join(one["text"] for [one] in chunks) == text
    lists = [one["logprobs"] for [one] in chunks]
    assert [value for one in lists for value in one["token_logprobs"]] == [None] + [-1.0] * 899
    offsets = [value for one in lists for value in one["text_offset"]]
    assert offsets == [len(bytes(ids[:n]).decode(errors="ignore")) for n in range(900)]
