"""Nothing gets past a grammar, whatever the tokens of a vocabulary run across."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.generation.logits.grammar_mask import unpack_mask
from asyncgen.structured.grammar_compiler import compile_grammar, is_special
from asyncgen.structured.marker_search import START, MarkerSearch
from asyncgen.structured.output_format import OutputFormat
from asyncgen.text.tool_calls.call_grammar import CallGrammar
from asyncgen.text.tool_calls.format_detection import TOOL_FORMATS
from tests.cases import for_each
from tests.doubles.models import byte_tokenizer

if TYPE_CHECKING:
    from asyncgen.structured.grammar import Grammar, Matcher
    from asyncgen.text.tokenizer import Tokenizer

llguidance = pytest.importorskip("llguidance")

EOS = 256
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def grammar_behind(marker: str, source: str, tokenizer: Tokenizer, kind: Any = "lark") -> Grammar:
    """Compile a grammar that begins behind a marker, in an answer that may go without it."""
    shape = OutputFormat("tools", kind, source, after=marker, may_never_begin=True)
    return compile_grammar(shape, tokenizer, len(tokenizer))


def allowed(matcher: Matcher) -> list[int]:
    """Ids that may come next."""
    words = torch.empty(1, matcher.grammar.num_words, dtype=torch.int32)
    matcher.fill(words[0])
    banned = unpack_mask(words, matcher.grammar.vocab_size)[0]
    found: list[int] = (~banned).nonzero()[:, 0].tolist()
    return found


def test_tokens_that_run_across_a_marker_are_found() -> None:
    texts = [b"<t>", b"<t>x", b"t>x", b">x", b"a<t>b", b"x", b"", b">", b"<t", b"t>>", b"<t><t>y"]
    search = MarkerSearch([b"<t>"], texts)
    assert dict(search.crossing(b"so ")) == {1: b"x", 4: b"b", 10: b"<t>y"}
    assert dict(search.crossing(b"so <")) == {**dict(search.crossing(b"")), 2: b"x", 9: b">"}
    assert dict(search.crossing(b"so <t")) == {**dict(search.crossing(b"")), 3: b"x"}


def test_marker_of_the_beginning_counts_there_alone() -> None:
    search = MarkerSearch([b"<t>", START + b" to="], [b" to=x", b"to=x", b"=x", b"y"])
    for text, rest in ((b" to=a", b"a"), (b"x to=a<t>b", b"b"), (b"  to=a", None)):
        for step in (1, 2, 50):
            kept, found, place = START, None, 0
            while place < len(text) and found is None:
                kept, found = search.split(kept, text[place : place + step])
                place += step
            assert (found if found is None else found + text[place:]) == rest
    assert dict(search.crossing(START)) == {0: b"x"}
    assert dict(search.crossing(START + b" ")) == {1: b"x"}
    assert dict(search.crossing(START + b" to")) == {2: b"x"}
    assert not dict(search.crossing(b"a to"))


def test_first_of_several_markers_is_found_in_pieces() -> None:
    search = MarkerSearch([b"<t>", b"[call]"], [b"{}", b" {a", b"x{"], b"{")
    for text, rest in (
        (b"a [call]b<t>c", b"b<t>c"),
        (b"a<t>[call]", b"[call]"),
        (b" \n{x}", b"{x}"),
        (b"<t>{", b"{"),
        (b"a            {<t>c", b"c"),
        (b"a{ [cal <t", None),
    ):
        for step in (1, 2, 3, 50):
            kept, found, place = START, None, 0
            while place < len(text) and found is None:
                kept, found = search.split(kept, text[place : place + step])
                place += step
            assert (found if found is None else found + text[place:]) == rest
    assert dict(search.crossing(START + b" ")) == {0: b"{}", 1: b"{a"}
    assert not dict(search.crossing(b"a      "))


@for_each(
    ("token", "is_allowed"),
    [
        ('>\n{"name": "w", "arguments": {"city": 5}}', False),
        ('>\n{"name": "w", "arguments": {"city": "R', True),
        (">\n", True),
        (">{", False),
        (">\n\n", True),  # white space is no part of a call
        ("> \n{", False),
        (">x", False),
        ('>x<tool_call>\n{"n', False),
        ('l>\n{"', True),
        ('So <tool_call>\n{"n', True),
        ('So <tool_call>\n{"m', False),
    ],
)
def test_token_across_a_marker_is_allowed_as_its_end_is(token: str, is_allowed: bool) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([token])
    writer = CallGrammar(TOOL_FORMATS[-2].syntax, {"w": SCHEMA}, {}, is_single=True)
    assert TOOL_FORMATS[-2].begin == "<tool_call>"
    matcher = grammar_behind("<tool_call>", writer.rest("<tool_call>"), tokenizer).matcher([EOS])
    before = "So <tool_call>"[: -1 if token[0] == ">" else -2 if token[0] == "l" else 0]
    for number in before.encode():
        assert number in allowed(matcher)
        matcher.accept(number)
    assert (260 in allowed(matcher)) is is_allowed
    if is_allowed:
        assert matcher.accept(260) and allowed(matcher)


CASES = [
    ("<tool_call>", "qwen", '\n{"name": "w", "arguments": {"city": 5}}\n</tool_call>'),
    ("<tool_call>", "qwen_coder", "\n<function=w>\n<parameter=city>\n5\n</parameter>\n</function>"),
    ("[TOOL_CALLS]", "mistral", 'w[ARGS]{"city": 5}'),
    ("<tool_calls>", "apriel", '[{"name": "w", "arguments": {"city": 5}}]</tool_calls>'),
    ("<|channel|>commentary to=functions.", "harmony", 'w <|constrain|>json<|message|>{"city": 5}'),
    ("<|tool_call>", "gemma", 'call:w{city:<|"|>Bonn<|"|>}<tool_call|>'),
]


@for_each(("marker", "name", "evil"), CASES)
def test_no_vocabulary_lets_arguments_past_a_strict_schema(
    marker: str, name: str, evil: str
) -> None:
    tools = next(each for each in TOOL_FORMATS if each.name == name)
    source = CallGrammar(tools.syntax, {"w": SCHEMA}, {}, is_single=True).rest(marker)
    plain = llguidance.LLTokenizer("byte")
    rest = llguidance.LLMatcher(plain, llguidance.LLMatcher.grammar_from_lark(source))
    draw = random.Random(name)
    script = f"So: {marker}{evil} and on"
    begun = 0
    for _ in range(12):
        tokenizer = byte_tokenizer()
        tokenizer.add_tokens(across(script, len(f"So: {marker}"), draw))
        texts = [bytes([n]) if n < EOS else b"" for n in range(260)]
        texts += [tokenizer.decode([n]).encode() for n in range(260, len(tokenizer))]
        matcher = grammar_behind(marker, source, tokenizer).matcher([EOS])
        said = b""
        while len(said) < len(script) + 20 and not matcher.is_over:
            ids = [each for each in allowed(matcher) if texts[each]]
            wanted = [each for each in ids if script.encode().startswith(said + texts[each])]
            is_free = draw.random() < 0.02 and marker.encode() in said
            token_id = draw.choice(ids if is_free or not wanted else wanted)
            assert matcher.accept(token_id) and not matcher.is_lost
            said += texts[token_id]
        _, found, behind = said.partition(marker.encode())
        rest.reset()
        begun += bool(found)
        assert rest.validate_tokens(list(behind)) == len(behind), said
    assert begun > 6


def across(script: str, place: int, draw: random.Random) -> list[str]:
    """Return pieces of a text that run across a place, and a few others."""
    found = {script[place - draw.randint(1, 8) : place + draw.randint(1, 30)] for _ in range(8)}
    starts = [draw.randrange(len(script)) for _ in range(6)]
    found |= {script[start : start + draw.randint(2, 9)] for start in starts}
    return sorted(each for each in found if not is_special(each, special=False))


@for_each("special", [False, True])
@for_each(
    ("token", "kind", "source", "text"),
    [
        ("<tool_call>", "lark", 'start: "<tool_call>5"', "<tool_call>5"),
        ("<b>", "regex", "a<b>c", "a<b>c"),
        ("<b>", "json", json.dumps({"enum": ["a<b>c"]}), '"a<b>c"'),
        ("[b]", "regex", r"a\[b\]c", "a[b]c"),
    ],
)
def test_text_of_an_added_token_does_not_lose_the_grammar(
    token: str, kind: Any, source: str, text: str, special: bool
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([token], special_tokens=special)
    shape = OutputFormat("x", kind, source)
    matcher = compile_grammar(shape, tokenizer, len(tokenizer)).matcher([EOS])
    while not matcher.is_over:
        assert matcher.accept(allowed(matcher)[0])
    assert tokenizer.decode(matcher.token_ids) == text


@for_each("text", ["<b>", "<|x|>", "[b]", "<b", "b>", "<", "<>", "x<b>", "<b>x", "<a b>"])
def test_special_tokens_are_those_of_llguidance(text: str) -> None:
    for special in (False, True):
        tokenizer = byte_tokenizer()
        tokenizer.add_tokens([text], special_tokens=special)
        number = tokenizer.encode_ids(text)[0]
        theirs = llguidance.LLTokenizer(tokenizer.backend_tokenizer.to_str(), n_vocab=261)
        assert theirs.is_special_token(number) is is_special(text, special=special) or number < 256
