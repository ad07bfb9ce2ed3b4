"""List the parts of a ``tokenizer.json``: steps and models of `tokenizers`, with their keys.

The library leaves out keys that it does not know, and reads a part by its type alone; so a part of
another type, or with a key that its type does not have, is refused. Everything else that looks into
a tokenizer's parts relies on that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from asyncgen.errors import ModelLoadError, clip, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

Rule: TypeAlias = tuple[Callable[[Any], bool], str]
"""Test of a value that is not null, and what is allowed, in words."""

CHAINS: Final = ("normalizer", "pre_tokenizer", "post_processor", "decoder")

MOST_ID: Final = 2**22
"""Ids end here: some work of the library goes with the largest. The largest vocabularies have 2**20
tokens."""

MOST_TOKEN: Final = 4096
"""Characters of a token; those of real vocabularies have up to some hundred."""

MOST_AFFIX: Final = 64
"""Characters of a prefix, a suffix or a text to search for, which costs time for each letter."""

MOST_NAMED: Final = 64
"""Characters of a token that a step or the model puts in by itself, such as the unknown one."""

MOST_WORD: Final = 128
"""Largest ``max_input_chars_per_word``: time goes with its cube. That of real models is 100."""

_MOST_PIECES: Final = 128
"""Pieces of a template, and ids of one of its tokens."""


def _text(most: int) -> Rule:
    return (
        lambda value: isinstance(value, str) and len(value) <= most,
        f"a text of at most {most} characters",
    )


def _whole(least: int, most: int) -> Rule:
    return (
        lambda value: type(value) is int and least <= value <= most,
        f"a whole number from {least} to {most}",
    )


def _one_of(*allowed: str) -> Rule:
    return lambda value: value in allowed, f"one of {', '.join(allowed)}"


def _is_pattern(value: object) -> bool:
    """Tell whether it is a regular expression, or a text to search for as it is."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    string = value.get("String")
    return isinstance(value.get("Regex"), str) or (
        isinstance(string, str) and len(string) <= MOST_AFFIX
    )


def _is_framing(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and _NAMED[0](value[0]) and _ID[0](value[1])


def _is_template(value: Any, texts: tuple[str, ...] = ("A", "B")) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MOST_PIECES
        and all(_is_template_piece(piece, texts) for piece in value)
    )


def _is_single(value: Any) -> bool:
    return _is_template(value, ("A",))


def _is_template_piece(value: object, texts: tuple[str, ...]) -> bool:
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, piece),) = value.items()
    if not isinstance(piece, dict) or not piece.keys() <= {"id", "type_id"}:
        return False
    named = piece.get("id")
    is_named = named in texts if kind == "Sequence" else _NAMED[0](named)
    return kind in ("Sequence", "SpecialToken") and is_named and _ID[0](piece.get("type_id"))


def _are_template_tokens(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(token, dict)
        and token.keys() == {"id", "ids", "tokens"}
        and _NAMED[0](name)
        and token["id"] == name
        and all(
            isinstance(each, list) and len(each) <= _MOST_PIECES
            for each in (token["ids"], token["tokens"])
        )
        and all(map(_ID[0], token["ids"]))
        and all(map(_NAMED[0], token["tokens"]))
        for name, token in value.items()
    )


_SWITCH: Final[Rule] = (lambda value: isinstance(value, bool), "true or false, without quotes")
_LETTER: Final[Rule] = (lambda value: isinstance(value, str) and len(value) == 1, "one character")
_CONTENT: Final[Rule] = (lambda value: isinstance(value, str), "a text")
_AFFIX: Final = _text(MOST_AFFIX)
_NAMED: Final = _text(MOST_NAMED)
_ID: Final = _whole(0, MOST_ID - 1)
_PARTS: Final[Rule] = (lambda value: isinstance(value, list), "a list of steps")
_PATTERN: Final[Rule] = (
    _is_pattern,
    f'{{"Regex": an expression}} or {{"String": a text of at most {MOST_AFFIX} characters}}',
)
_FRAMING: Final[Rule] = (_is_framing, "a list of a token and its id")
_TEMPLATE: Final[Rule] = (
    _is_template,
    f"a list of at most {_MOST_PIECES} objects with one `Sequence` or `SpecialToken` each",
)
_SINGLE: Final[Rule] = (_is_single, f"{_TEMPLATE[1]}, of text A alone")
_BEHAVIOR: Final = _one_of(
    "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"
)

Keys: TypeAlias = Mapping[str, Rule]

_REPLACE: Final[Keys] = {"pattern": _PATTERN, "content": _CONTENT}
_BYTE_LEVEL: Final[Keys] = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), _SWITCH)
_METASPACE: Final[Keys] = {
    "replacement": _LETTER,
    "prepend_scheme": _one_of("first", "never", "always"),
    "split": _SWITCH,
    # Old versions wrote these.
    "add_prefix_space": _SWITCH,
    "str_rep": _AFFIX,
}

STEPS: Final[Mapping[str, Mapping[str, Keys]]] = {
    "normalizer": {
        "Sequence": {"normalizers": _PARTS},
        "BertNormalizer": dict.fromkeys(
            ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), _SWITCH
        ),
        "Strip": {"strip_left": _SWITCH, "strip_right": _SWITCH},
        "Precompiled": {"precompiled_charsmap": _CONTENT},
        "Replace": _REPLACE,
        "Prepend": {"prepend": _CONTENT},
        **dict.fromkeys(
            ("StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "ByteLevel"), {}
        ),
    },
    "pre_tokenizer": {
        "Sequence": {"pretokenizers": _PARTS},
        "ByteLevel": _BYTE_LEVEL,
        "CharDelimiterSplit": {"delimiter": _LETTER},
        "Digits": {"individual_digits": _SWITCH},
        "FixedLength": {"length": _whole(1, MOST_ID)},
        "Metaspace": _METASPACE,
        "Punctuation": {"behavior": _BEHAVIOR},
        "Split": {"pattern": _PATTERN, "behavior": _BEHAVIOR, "invert": _SWITCH},
        **dict.fromkeys(
            ("BertPreTokenizer", "UnicodeScripts", "Whitespace", "WhitespaceSplit"), {}
        ),
    },
    "post_processor": {
        "Sequence": {"processors": _PARTS},
        "BertProcessing": {"sep": _FRAMING, "cls": _FRAMING},
        "ByteLevel": _BYTE_LEVEL,
        "RobertaProcessing": {
            "sep": _FRAMING,
            "cls": _FRAMING,
            "trim_offsets": _SWITCH,
            "add_prefix_space": _SWITCH,
        },
        "TemplateProcessing": {
            "single": _SINGLE,
            "pair": _TEMPLATE,
            "special_tokens": (
                _are_template_tokens,
                f'objects of "id", "ids" and "tokens" by "id", at most {_MOST_PIECES} of each',
            ),
        },
    },
    "decoder": {
        "Sequence": {"decoders": _PARTS},
        "BPEDecoder": {"suffix": _AFFIX},
        "ByteLevel": _BYTE_LEVEL,
        "CTC": {"pad_token": _AFFIX, "word_delimiter_token": _AFFIX, "cleanup": _SWITCH},
        "Metaspace": _METASPACE,
        "Replace": _REPLACE,
        "Strip": {
            "content": _LETTER,
            "start": _whole(0, 2**62),
            "stop": _whole(0, 2**62),
        },
        "WordPiece": {"prefix": _AFFIX, "cleanup": _SWITCH},
        **dict.fromkeys(("ByteFallback", "Fuse"), {}),
    },
}
"""Types of the steps of each chain, and the keys of each type."""

_VOCABULARY: Final[Rule] = (lambda value: isinstance(value, dict), "ids by token")
_LIST: Final[Rule] = (lambda value: isinstance(value, list), "a list")

MODELS: Final[Mapping[str, Keys]] = {
    "BPE": {
        # Its value is checked with what it is for.
        "dropout": (lambda value: True, "null or 0"),
        "unk_token": _NAMED,
        "continuing_subword_prefix": _AFFIX,
        "end_of_word_suffix": _AFFIX,
        "fuse_unk": _SWITCH,
        "byte_fallback": _SWITCH,
        "ignore_merges": _SWITCH,
        "vocab": _VOCABULARY,
        "merges": _LIST,
    },
    "WordPiece": {
        "unk_token": _NAMED,
        "continuing_subword_prefix": _AFFIX,
        "max_input_chars_per_word": _whole(0, MOST_WORD),
        "vocab": _VOCABULARY,
    },
    "WordLevel": {"vocab": _VOCABULARY, "unk_token": _NAMED},
    "Unigram": {"unk_id": _whole(0, MOST_ID - 1), "vocab": _LIST, "byte_fallback": _SWITCH},
}
"""Types of models, and the keys of each type."""

_ADDED: Final[Keys] = {
    "id": _ID,
    "content": _text(MOST_TOKEN),
    **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), _SWITCH),
}
_ADDED_VALUES: Final = itemgetter(*_ADDED)
_SIDE: Final = _one_of("Left", "Right")
_TRUNCATION: Final[Keys] = {
    "direction": _SIDE,
    "max_length": _whole(0, 2**62),
    "strategy": _one_of("LongestFirst", "OnlyFirst", "OnlySecond"),
    "stride": _whole(0, 2**62),
}
_PADDING: Final[Keys] = {
    "strategy": (
        lambda value: value == "BatchLongest" or isinstance(value, dict),
        '"BatchLongest" or {"Fixed": a number}',
    ),
    "direction": _SIDE,
    "pad_to_multiple_of": _whole(0, 2**62),
    "pad_id": _ID,
    "pad_type_id": _ID,
    "pad_token": _NAMED,
}
_OBJECT: Final[Rule] = (lambda value: isinstance(value, dict), "an object")
_WHOLE: Final[Keys] = {
    "version": _AFFIX,
    "truncation": _OBJECT,
    "padding": _OBJECT,
    "added_tokens": (lambda value: isinstance(value, list), "a list of tokens"),
    **dict.fromkeys((*CHAINS, "model"), _OBJECT),
}

_LISTS: Final = ("normalizers", "pretokenizers", "decoders", "processors")
_BY_KEY: Final = (
    *((name, "Sequence") for name in _LISTS),
    ("precompiled_charsmap", "Precompiled"),
    ("prepend", "Prepend"),
    ("content", "Replace"),
    ("single", "TemplateProcessing"),
    ("use_regex", "ByteLevel"),
    ("replacement", "Metaspace"),
    ("merges", "BPE"),
    ("unk_id", "Unigram"),
    ("max_input_chars_per_word", "WordPiece"),
    ("vocab", "WordLevel"),
)
"""Types by a key, for files of old versions, which do not say them."""


def kind_of(part: Mapping[str, Any]) -> str:
    """Return the type of a step or a model; files of old releases do not say it."""
    if "type" in part:
        return str(part["type"])
    return next((kind for key, kind in _BY_KEY if key in part), "a step without a type")


def parts_of(step: object) -> Iterator[dict[str, Any]]:
    """Yield the steps of a chain, those of sequences one by one."""
    for part in _nodes_of(step):
        if kind_of(part) != "Sequence":
            yield part


def _nodes_of(step: object) -> Iterator[dict[str, Any]]:
    """Yield the steps of a chain, and the sequences that hold them."""
    if not isinstance(step, dict):
        return
    yield step
    if kind_of(step) == "Sequence":
        for name in _LISTS:
            parts = step.get(name)
            for part in parts if isinstance(parts, list) else ():
                yield from _nodes_of(part)


def check_parts(place: object, state: Mapping[str, Any]) -> bool:
    """Refuse parts of an unknown type, with an unknown key, or with a value of another kind.

    A part without a type gets the one that its keys say.

    Args:
        place: The file, for messages.
        state: Content of ``tokenizer.json``, or those parts of it that there are.

    Returns:
        Whether a part got its type here, so that the file must be written anew.

    Raises:
        ModelLoadError: Names the part, the key and what is allowed.
    """
    _check_keys(place, "it", state, _WHOLE)
    is_changed = False
    for chain in CHAINS:
        for part in _nodes_of(state.get(chain)):
            is_changed |= _check_part(place, f"the step %s of `{chain}`", part, STEPS[chain])
    model = state.get("model")
    if model is not None:
        is_changed |= _check_part(place, "its model", model, MODELS)
    added = state.get("added_tokens") or []
    for token in () if _are_plain(added) else added:
        if not isinstance(token, dict):
            raise ModelLoadError(f"{place}: a token of `added_tokens` is {shorten(token)}")
        _check_keys(place, "a token of `added_tokens`", token, _ADDED)
    for name, keys in (("truncation", _TRUNCATION), ("padding", _PADDING)):
        _check_keys(place, f"`{name}`", state.get(name) or {}, keys)
    return is_changed


def _are_plain(tokens: list[Any]) -> bool:
    """Tell at once whether all added tokens are as they should be, as those of real files are."""
    if {*map(type, tokens)} != {dict} or any(token.keys() != _ADDED.keys() for token in tokens):
        return False
    numbers, texts, *flags = zip(*map(_ADDED_VALUES, tokens), strict=True)
    return (
        all({*map(type, each)} == {bool} for each in flags)
        and {*map(type, numbers)} == {int}
        and {*map(type, texts)} == {str}
        and 0 <= min(numbers) <= max(numbers) < MOST_ID
        and max(map(len, texts)) <= MOST_TOKEN
    )


def _check_part(place: object, where: str, part: dict[str, Any], kinds: Mapping[str, Keys]) -> bool:
    kind = kind_of(part)
    keys = kinds.get(kind)
    who = where.replace("%s", repr(clip(kind, 80)))
    if keys is None or not isinstance(part.get("type", ""), str):
        raise _unknown(place, f"{who} has the type {clip(kind, 80)!r}: {', '.join(kinds)}")
    is_old = "type" not in part
    part.setdefault("type", kind)
    _check_keys(place, who, part, {"type": _CONTENT, **keys})
    for value in part.values() if kind == "Sequence" else ():
        for each in value if isinstance(value, list) else ():
            if not isinstance(each, dict):
                raise _unknown(place, f"{who} holds {shorten(each)}, which is no step")
    return is_old


def _check_keys(place: object, who: str, part: Mapping[str, Any], keys: Keys) -> None:
    for key, value in part.items():
        rule = keys.get(key)
        if rule is None:
            named = clip(key, 80)
            raise _unknown(place, f"{who} has the key {named!r}, which nothing reads: {[*keys]}")
        accepts, allowed = rule
        if value is None or accepts(value):
            continue
        problem = f"`{key}` of {who} is {shorten(value)}: must be {allowed}"
        if rule in (_OBJECT, _PARTS):
            raise _unknown(place, problem)
        raise ModelLoadError(f"{place}: {problem}")


def _unknown(place: object, problem: str) -> ModelLoadError:
    return ModelLoadError(f"{place} is not a tokenizer file ({problem}); download it again")
