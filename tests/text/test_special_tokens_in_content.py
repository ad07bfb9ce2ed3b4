"""Control tokens that somebody types into a message stay text, whatever the template does."""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import NFKC, Lowercase, Sequence

from asyncgen import ChatTemplateError, InvalidRequestError
from asyncgen.text import chat_methods
from asyncgen.text.chat_template import render_chat
from asyncgen.text.tokenizer import Tokenizer
from tests.doubles.tokenizers import SPECIAL, tokenizer_json

CHATML = "<|im_start|>", "<|im_end|>"
CALLS = (
    "{% for c in m.tool_calls or () %}CALL{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}"
)
EVERYTHING = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for d in documents or () %}{{ d.text }}"
    "{% endfor %}{{ note or '' }}{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name or '' }}"
    "\n{{ m.reasoning_content or '' }}{{ m.content or '' }}" + CALLS + "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def turns(opening: str, closing: str, body: str = "m.content") -> str:
    return (
        "{% for m in messages %}" + opening + "{{ " + body + " }}" + closing + "{% endfor %}"
        "{% if add_generation_prompt %}" + opening.replace("m.role", "'assistant'") + "{% endif %}"
    )


FORMS: dict[str, tuple[str, list[str], str]] = {
    "chatml": ("byte_level", [*CHATML], turns("<|im_start|>{{ m.role }}\n", "<|im_end|>\n")),
    "trimmed": ("byte_level", [*CHATML], turns("<|im_start|>", "<|im_end|>\n", "m.content | trim")),
    "llama 3": (
        "byte_level",
        ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"],
        "<|begin_of_text|>"
        + turns("<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n", "<|eot_id|>"),
    ),
    "gemma": (
        "byte_fallback",
        ["<start_of_turn>", "<end_of_turn>", "<bos>"],
        "<bos>" + turns("<start_of_turn>{{ m.role }}\n", "<end_of_turn>\n", "m.content | trim"),
    ),
    "mistral": ("byte_fallback", ["[INST]", "[/INST]"], turns("<s>[INST] ", "[/INST]</s>")),
    "deepseek": ("byte_level", [], turns("<｜User｜>", "<｜end▁of▁sentence｜>")),
    "phi 3": (
        "byte_level",
        ["<|user|>", "<|assistant|>", "<|end|>"],
        (
            "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}<|end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
        ),
    ),
    "unigram": ("metaspace", [], turns("<s>", "</s>")),
    "wordpiece": ("wordpiece", [], turns("[CLS]", "[SEP]")),
    "reasoning cut out": (
        "byte_level",
        [*CHATML],
        turns(
            "<|im_start|>",
            "<|im_end|>",
            "m.content.split('<cut>')[0] ~ m.content.split('</cut>')[-1]",
        ),
    ),
    "reasoning dropped": (
        "byte_level",
        [*CHATML],
        turns("<|im_start|>", "<|im_end|>", "m.content.replace('<cut>', '') | trim"),
    ),
    "upper case": (
        "byte_level",
        ["<|USER|>", "<|END|>"],
        turns("<|USER|>", "<|END|>", "m.content | upper"),
    ),
    "half of a token": (
        "byte_level",
        ["<|end|>", "<|user|>"],
        turns("<|user|>", "nd|><|end|>", "m.content"),
    ),
    "lower case": (
        "byte_level",
        ["<|user|>", "<|end|>"],
        "{% for m in messages %}<|user|>{{ '<|' ~ m.content | lower ~ '|>' }}<|end|>{% endfor %}",
    ),
    "reasoning": (
        "byte_level",
        [*CHATML, "<think>", "</think>"],
        (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{% set c = m.content %}"
            "{% if m.role == 'assistant' and '</think>' in c %}<think>\n"
            "{{ c.split('</think>')[0].split('<think>')[-1] }}\n</think>\n"
            "{{ c.split('</think>')[-1].lstrip('\n') }}{% else %}{{ c }}{% endif %}"
            "<|im_end|>\n{% endfor %}"
        ),
    ),
    "a name between": (
        "byte_level",
        ["<|user|>", "<|end|>"],
        "{% for m in messages %}<|user|><|{{ m.name }}|>{{ m.content }}<|end|>{% endfor %}",
    ),
}
"""Templates: kind of tokenizer, special tokens, jinja text."""

MAY_REFUSE = ("reasoning",)
"""Templates that look for control tokens."""


@cache
def tokenizer(form: str) -> Tokenizer:
    kind, special, template = FORMS[form]
    backend = Backend.from_str(tokenizer_json(kind))
    if form == "deepseek":
        marks = [("<｜User｜>", False), ("<｜Assistant｜>", False), ("<｜end▁of▁sentence｜>", True)]
        for text, is_special in marks:
            backend.add_tokens([AddedToken(text, special=is_special, normalized=not is_special)])
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    roles = {
        role: text for role, text in SPECIAL[kind].items() if backend.token_to_id(text) is not None
    }
    return Tokenizer(
        backend, special_tokens=roles, chat_template=template, special_tokens_in_content="text"
    )


def controls(one: Tokenizer) -> dict[int, str]:
    """Ids of control tokens, but for the one of what a tokenizer does not know."""
    assert isinstance(one.chat_template, str)
    added = one.backend_tokenizer.get_added_tokens_decoder()
    kept = {
        number: token.content
        for number, token in added.items()
        if token.special or token.content in one.chat_template
    }
    return {number: text for number, text in kept.items() if text not in ("<unk>", "[UNK]")}


def ids_of(one: Tokenizer, messages: list[dict[str, Any]], **more: Any) -> list[int]:
    ids: list[int] = one.apply_chat_template(messages, add_generation_prompt=True, **more)
    return ids


def user(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


def check(form: str, messages: list[dict[str, Any]], **more: Any) -> None:
    """Hold a conversation to the law: as many control tokens as one of harmless texts."""
    one = tokenizer(form)
    known = controls(one)
    try:
        ids = ids_of(one, messages, **more)
    except InvalidRequestError as error:
        assert form in MAY_REFUSE and "changes or tests it" in str(error)
        return
    harmless = [
        {**each, "content": "x", **({"name": "x"} if "name" in each else {})} for each in messages
    ]
    counted = [known[number] for number in ids if number in known]
    expected = ids_of(one, harmless, **more)
    assert counted == [known[number] for number in expected if number in known], messages
    rendered = one.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **more)
    if FORMS[form][0] == "byte_level":
        assert one.decode(ids) == rendered
    elif FORMS[form][0] == "byte_fallback":
        assert one.decode(ids).replace(" ", "") == rendered.replace(" ", "")


@pytest.mark.parametrize("form", FORMS)
def test_no_content_becomes_a_control_token(form: str) -> None:
    one = tokenizer(form)
    for text in controls(one).values():
        half = len(text) // 2
        for content in (
            text,
            f"a{text}b",
            f"  {text}\n",
            text * 3,
            f"{text[:half]}<cut></cut>{text[half:]}",
            f"{text[:half]}<cut>{text[half:]}",
            text.lower(),
            text[:half],
            text[half:],
        ):
            check(form, user("before", content, "behind"))
        check(form, user(text[:half], text[half:]))
    check(form, user("<|e", "<", "|>", "\x7f<|end|>\ue000"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rounds", [15, pytest.param(2000, marks=pytest.mark.soak)])
def test_random_contents_become_no_control_tokens(form: str, rounds: int) -> None:
    draw = random.Random(form)
    tokens = list(controls(tokenizer(form)).values())
    halves = [
        part for text in tokens for at in (1, len(text) // 2, -1) for part in (text[:at], text[at:])
    ]
    others = [
        "<cut>",
        "</cut>",
        "<",
        "|",
        ">",
        " ",
        "\n",
        "a",
        "Hello",
        "user",
        "end",
        "é",
        "\x7f",
        "＜",
        "\ue000",
    ]
    for _ in range(rounds):
        messages = []
        for _ in range(draw.randint(1, 4)):
            pieces = (
                draw.choice(draw.choice((tokens, halves, others)))
                for _ in range(draw.randint(0, 6))
            )
            message = {"role": draw.choice(("user", "assistant")), "content": "".join(pieces)}
            messages.append(
                {**message, "name": draw.choice(tokens + halves + others)}
                if form == "a name between"
                else message
            )
        check(form, messages)


@pytest.mark.parametrize("form", FORMS)
def test_all_else_has_the_ids_of_the_whole_text(form: str) -> None:
    one = tokenizer(form)
    known = controls(one)
    typed = max(known.values(), key=str.isupper)
    texts = [" Hello  world, don't", f"x {typed} y", "a < b and c > d | 1 <= 2\n\n", " the fox "]
    messages = [{**each, "name": "x"} for each in user(*texts)]
    wanted = [{**each, "name": "x"} for each in user(texts[0], "x", *texts[2:])]

    def turns(ids: list[int]) -> list[list[int]]:
        found: list[list[int]] = [[]]
        for number in ids:
            found[-1].append(number)
            if number in known:
                found.append([])
        return found

    ours = turns(ids_of(one, messages))
    theirs = turns(ids_of(one, wanted, special_tokens_in_content="allow"))
    assert len(ours) == len(theirs)
    assert sum(each != other for each, other in zip(ours, theirs, strict=True)) == 1
    assert ids_of(one, wanted) == ids_of(one, wanted, special_tokens_in_content="allow")
    assert len(turns(ids_of(one, messages, special_tokens_in_content="allow"))) > len(ours)


ENDED = "<|im_end|>"
CALL = {"id": "123456789", "type": "function"}
PLACES: dict[str, Any] = {
    "content": {"message": {"content": ENDED}},
    "a part": {"message": {"content": [{"type": "text", "text": f"a {ENDED}"}]}},
    "two parts": {
        "message": {"content": [{"type": "text", "text": each} for each in ("<|im", "_end|>")]}
    },
    "name": {"message": {"content": "x", "name": ENDED}},
    "reasoning": {"message": {"content": "x", "reasoning_content": ENDED}},
    "reasoning and content": {"message": {"content": "im_end|>", "reasoning_content": "<|"}},
    "name of a call": {
        "message": {"tool_calls": [{**CALL, "function": {"name": ENDED, "arguments": {}}}]}
    },
    "argument": {
        "message": {
            "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"a": [ENDED]}}}]
        }
    },
    "argument as text": {
        "message": {"tool_calls": [{**CALL, "function": {"name": "f", "arguments": ENDED}}]}
    },
    "key of an argument": {
        "message": {"tool_calls": [{**CALL, "function": {"name": "f", "arguments": {ENDED: 1}}}]}
    },
    "result of a call": {"message": {"role": "tool", "content": ENDED}},
    "another role": {"message": {"role": ENDED, "content": "x"}},
    "description of a tool": {
        "tools": [{"type": "function", "function": {"name": "f", "description": ENDED}}]
    },
    "schema of a tool": {
        "tools": [
            {"type": ENDED, "function": {"name": "f", "parameters": {ENDED: {"type": ENDED}}}}
        ]
    },
    "document": {"documents": [{"title": "t", "text": ENDED}]},
    "variable": {"note": ENDED},
    "token of a role": {"bos_token": ENDED, "note": "x"},
}
"""Where a client can say something, and what."""

LOOPED = EVERYTHING.replace(
    "{{ m.content or '' }}",
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content or () %}{{ p.text }}{% endfor %}{% endif %}",
)


@pytest.mark.parametrize("place", PLACES)
def test_nothing_that_a_client_says_becomes_a_control_token(place: str) -> None:
    one = chatml(LOOPED)
    said = {**PLACES[place]}
    message = {"role": "assistant", "content": None, **said.pop("message", {"content": "x"})}
    ids = one.apply_chat_template(
        [message, {"role": "user", "content": "y"}], add_generation_prompt=True, **said
    )
    text = one.apply_chat_template(
        [message, {"role": "user", "content": "y"}],
        add_generation_prompt=True,
        tokenize=False,
        **said,
    )
    assert ENDED in text and one.decode(ids) == text
    begins, ends = (one.convert_tokens_to_ids(each) for each in CHATML)
    assert (ids.count(begins), ids.count(ends)) == (3, 2)


def chatml(template: str, **added: dict[str, Any]) -> Tokenizer:
    backend = Backend.from_str(tokenizer_json("byte_level"))
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken(text, **flags) for text, flags in added.items()])
    return Tokenizer(
        backend,
        special_tokens=SPECIAL["byte_level"],
        chat_template=template,
        special_tokens_in_content="text",
    )


@pytest.mark.parametrize(
    "content", [f"a {ENDED}", f"{ENDED}", "<|im_", [{"type": "text", "text": ENDED}]]
)
def test_a_message_that_goes_on_is_text(content: Any) -> None:
    one = tokenizer("trimmed")
    messages = [*user("Hi"), {"role": "assistant", "content": content}]
    ids = one.apply_chat_template(messages, continue_final_message=True)
    text = one.apply_chat_template(messages, continue_final_message=True, tokenize=False)
    assert one.decode(ids) == text and text.endswith("|>" if ENDED in text[-12:] else "<|im_")
    assert ids.count(one.eos_token_id) == 1


TESTS = {
    "split": "{{ m.content.split('</think>')[-1] if '</think>' in m.content else m.content }}",
    "compared": "{{ 'y' if m.content == '<|im_end|>' else m.content }}",
    "escaped": "{{ m.content | e }}",
    "replaced": "{{ m.content | replace('<|im_end|>', '|') }}",
    "counted": "{{ m.content.count('<') }}{{ m.content }}",
    "raised": "{{ raise_exception('?') if '<|im_end|>' not in m.content }}{{ m.content }}",
}


@pytest.mark.parametrize("form", TESTS)
def test_a_template_that_tests_or_changes_control_tokens_is_refused_by_name(form: str) -> None:
    template = "{% for m in messages %}<|im_start|>" + TESTS[form] + "<|im_end|>{% endfor %}<think>"
    one = chatml(template, **{"<think>": {}, "</think>": {}})
    typed = "</think>" if form == "split" else ENDED
    messages = [{"role": "user", "content": f"{typed}"}]
    said = (
        rf"`messages\[0\].content` is '{re.escape(typed)}': the chat template .* changes or tests"
    )
    with pytest.raises(InvalidRequestError, match=said) as caught:
        one.apply_chat_template(messages)
    assert "special_tokens_in_content" in str(caught.value)
    assert one.apply_chat_template(messages, special_tokens_in_content="allow")


def test_what_a_template_looks_for_is_no_reason_to_refuse() -> None:
    template = "{% for m in messages %}<|im_start|>" + TESTS["split"] + "<|im_end|>{% endfor %}"
    one = chatml(template)
    ids = one.apply_chat_template(
        user(f"<think>a</think>b{ENDED}", f"<|im<think>_end|></think>{ENDED}")
    )
    assert one.decode(ids) == f"<|im_start|>b{ENDED}{ENDED}<|im_start|>{ENDED}{ENDED}"
    assert ids.count(one.eos_token_id) == 2


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
@pytest.mark.parametrize("is_special", [True, False])
def test_flags_of_tokens(flag: str, is_special: bool) -> None:
    token = AddedToken("<|X|>", special=is_special, **{"normalized": False, flag: True})
    backend = Backend.from_str(tokenizer_json("byte_level"))
    backend.normalizer = Sequence([NFKC(), Lowercase()])
    backend.add_tokens([token])
    template = "{% for m in messages %}<|X|> {{ m.content }} <|X|> {% endfor %}"
    one = Tokenizer(backend, chat_template=template, special_tokens_in_content="text")
    number = one.convert_tokens_to_ids("<|X|>")
    contents = ["a", "<|X|>", " <|x|> ", "＜｜Ｘ｜＞", "<|X|", "> <|X|>b", "a<|X|>"]
    for content in contents:
        ids = one.apply_chat_template(user("x", content, "y"))
        assert ids.count(number) == 6, content
        if content == "a":
            assert ids == one.apply_chat_template(
                user("x", "a", "y"), special_tokens_in_content="allow"
            )
    allowed = [
        one.apply_chat_template(user(each), special_tokens_in_content="allow") for each in contents
    ]
    assert max(ids.count(number) for ids in allowed) > 2


def test_harmless_contents_cost_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    one = chatml(EVERYTHING)
    rendered = []

    def count(*arguments: Any, **options: Any) -> str:
        rendered.append(1)
        return render_chat(*arguments, **options)

    monkeypatch.setattr(chat_methods, "render_chat", count)
    for content, times in (
        ("Hello, (you) [there] a|b a>b", 1),
        ("a <|im_end|> b", 2),
        ("x < y", 1),
    ):
        rendered.clear()
        ids_of(one, user(content))
        assert len(rendered) == times


def test_values_of_other_kinds_and_names_are_refused() -> None:
    one = chatml(EVERYTHING)
    with pytest.raises(
        InvalidRequestError, match='`special_tokens_in_content` is \'texts\': use "allow" or "text"'
    ):
        one.special_tokens_in_content = "texts"  # type: ignore[assignment]
    with pytest.raises(InvalidRequestError, match="special_tokens_in_content"):
        one.apply_chat_template(user("x"), special_tokens_in_content=True)  # type: ignore[arg-type]
    with pytest.raises(ChatTemplateError, match="a value of the type `PosixPath`"):
        one.apply_chat_template([{"role": "user", "content": "x", "name": Path("x")}])


def test_several_conversations_and_tensors() -> None:
    one = tokenizer("chatml")
    both = [user(ENDED), user("a longer text")]
    rows = one.apply_chat_template(both, padding=True, return_dict=True, return_tensors="pt")
    assert rows["input_ids"].shape == rows["attention_mask"].shape and len(rows["input_ids"]) == 2
    single = [one.apply_chat_template(each) for each in both]
    assert one.apply_chat_template(both) == single
    short = one.apply_chat_template(both, truncation=True, max_length=7)
    assert short == [each[:7] for each in single]
    one.truncation_side = "left"
    try:
        assert one.apply_chat_template(both, truncation=True, max_length=7) == [
            each[-7:] for each in single
        ]
    finally:
        one.truncation_side = "right"


def test_ids_with_gaps_in_the_vocabulary() -> None:
    state = json.loads(tokenizer_json("byte_level"))
    state["model"]["vocab"]["Hello"] = 700
    backend = Backend.from_str(json.dumps(state))
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|new|>"])
    one = Tokenizer(
        backend, chat_template=FORMS["chatml"][2] + "<|new|>", special_tokens_in_content="text"
    )
    ids = one.apply_chat_template(user(f"Hello {ENDED}"))
    assert one.decode(ids) == f"<|im_start|>user\nHello {ENDED}{ENDED}\n<|new|>"
    assert one.decode(ids[-1:]) == "<|new|>"


def test_tokens_that_are_added_later_are_control_tokens() -> None:
    one = chatml(FORMS["chatml"][2])
    before = one.apply_chat_template(user("<|late|>"))
    one.add_tokens("<|late|>", special_tokens=True)
    assert one.apply_chat_template(user("<|late|>")) == before
    assert one.apply_chat_template(user("<|late|>"), special_tokens_in_content="allow") != before


@pytest.mark.parametrize("template", ["{% broken", "{{ x" * 10**5, "{% break %}"])
def test_a_broken_template_is_told_when_it_is_used(template: str) -> None:
    one = chatml(template)
    one.warm_guards()
    with pytest.raises(ChatTemplateError, match="template"):
        one.apply_chat_template(user("x"))


def test_threads_encode_at_once() -> None:
    one = chatml(FORMS["chatml"][2])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: tuple(ids_of(one, user(f"{ENDED} x" * 50))), range(64)))
    assert len({*found}) == 1 and found[0].count(one.eos_token_id) == 1
