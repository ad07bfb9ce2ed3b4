"""Control tokens that somebody types into a message stay text, whatever the template does."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import NFKC, Lowercase, Sequence

from asyncgen import InvalidRequestError
from asyncgen.text.tokenizer import Tokenizer
from tests.doubles.tokenizers import SPECIAL, tokenizer_json

TURNS = "{% for m in messages %}{{ OPEN }}{{ BODY }}{{ CLOSE }}{% endfor %}"
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
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
    "unigram": ("metaspace", [], turns("<s>", "</s>")),
    "wordpiece": ("wordpiece", [], turns("[CLS]", "[SEP]")),
    "reasoning cut out": (
        "byte_level",
        [*CHATML],
        turns("<|im_start|>", "<|im_end|>", "m.content.split('<cut>')[0] ~ m.content.split('</cut>')[-1]"),
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
    "a name between": (
        "byte_level",
        ["<|user|>", "<|end|>"],
        "{% for m in messages %}<|user|><|{{ m.name }}|>{{ m.content }}<|end|>{% endfor %}",
    ),
}
"""Templates: kind of tokenizer, special tokens, jinja text."""


@cache
def tokenizer(form: str) -> Tokenizer:
    kind, special, template = FORMS[form]
    backend = Backend.from_str(tokenizer_json(kind))
    if form == "deepseek":
        marks = [("<｜User｜>", False), ("<｜Assistant｜>", False), ("<｜end▁of▁sentence｜>", True)]
        for text, is_special in marks:
            backend.add_tokens([AddedToken(text, special=is_special, normalized=not is_special)])
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    roles = {role: text for role, text in SPECIAL[kind].items() if backend.token_to_id(text)}
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
    ids = ids_of(one, messages, **more)
    harmless = [{**each, "content": "x", **({"name": "x"} if "name" in each else {})} for each in messages]
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
    halves = [part for text in tokens for at in (1, len(text) // 2, -1) for part in (text[:at], text[at:])]
    others = ["<cut>", "</cut>", "<", "|", ">", " ", "\n", "a", "Hello", "user", "end", "é", "\x7f", "＜", "\ue000"]
    for _ in range(rounds):
        messages = []
        for _ in range(draw.randint(1, 4)):
            pieces = (draw.choice(draw.choice((tokens, halves, others))) for _ in range(draw.randint(0, 6)))
            message = {"role": draw.choice(("user", "assistant")), "content": "".join(pieces)}
            messages.append({**message, "name": draw.choice(tokens + halves + others)} if form == "a name between" else message)
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
