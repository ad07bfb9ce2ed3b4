"""Read the special tokens of a tokenizer from the files beside ``tokenizer.json``.

Three files may name them; which one counts is the rule of the reference (transformers 5.23):
``special_tokens_map.json`` is read only where ``tokenizer_config.json`` has no
``added_tokens_decoder``, and then wins; a role that neither names is that of the class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tokenizers import AddedToken

from asyncgen.errors import shorten
from asyncgen.text.tokenizer_classes import class_tokens, with_class_extras

ROLES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

_EXTRA: Final = "extra_special_tokens"
_EXTRA_BEFORE: Final = "additional_special_tokens"
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Special tokens that files and class name.

    Attributes:
        roles: Tokens by role, in the order of `ROLES`.
        named: Tokens by another name, such as ``image_token``.
        extra: Tokens without a name.
        forms: Tokens by text whose files say how they match.
    """

    roles: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    extra: Sequence[str] = ()
    forms: Mapping[str, AddedToken] = field(default_factory=dict)


def special_tokens(
    config: Mapping[str, Any], token_map: Mapping[str, Any], class_name: str
) -> SpecialTokens:
    """Join what the files and the class say.

    Args:
        config: Content of ``tokenizer_config.json``.
        token_map: Content of ``special_tokens_map.json``.
        class_name: Class of the reference; see `tokenizer_classes`.

    Raises:
        TypeError: An entry is not a token.
    """
    given = dict(config)
    if _EXTRA_BEFORE in given and not given.get(_EXTRA):
        given[_EXTRA] = given.pop(_EXTRA_BEFORE)
    named = _pop_named(given)
    if "added_tokens_decoder" not in config:
        _update(given, token_map)
        named.update(_pop_named(given))
    if _EXTRA_BEFORE in given and _EXTRA not in given:
        given[_EXTRA] = given.pop(_EXTRA_BEFORE)
    defaults = class_tokens(class_name)
    given = {**{role: token for role, token in defaults.items() if role in ROLES}, **given}
    named = {**{name: token for name, token in defaults.items() if name not in ROLES}, **named}
    listed = given.get(_EXTRA)
    extra = with_class_extras(class_name, None if listed is None else list(listed), config)
    tokens = {role: given[role] for role in ROLES if given.get(role) is not None}
    values = [*tokens.values(), *named.values(), *extra]
    return SpecialTokens(
        {role: content(token) for role, token in tokens.items()},
        {name: content(token) for name, token in named.items()},
        list(dict.fromkeys(map(content, extra))),
        {content(token): _form(token) for token in values if isinstance(token, Mapping)},
    )


def content(token: object) -> str:
    """Return the text of a token as files have it.

    Raises:
        TypeError: It is not a token.
    """
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str):
        raise TypeError(f"{shorten(token)} is not a token")
    return text


def _pop_named(given: dict[str, Any]) -> dict[str, Any]:
    """Take out the tokens with a name that is no role."""
    names = [
        key
        for key, value in given.items()
        if key.endswith("_token") and key not in ROLES and isinstance(value, str | Mapping)
    ]
    named = {name: given.pop(name) for name in names}
    if isinstance(given.get(_EXTRA), Mapping):
        named.update(given.pop(_EXTRA))
    return named


def _update(given: dict[str, Any], token_map: Mapping[str, Any]) -> None:
    """Let the map win, and join lists of further tokens."""
    for key, value in token_map.items():
        if key == _EXTRA and isinstance(value, list):
            before = given.get(_EXTRA) or []
            seen = [content(token) for token in before]
            given[key] = [*before, *(token for token in value if content(token) not in seen)]
        else:
            given[key] = value


def _form(token: Mapping[str, Any]) -> AddedToken:
    flags = {name: bool(token.get(name, False)) for name in _FLAGS}
    return AddedToken(content(token), special=True, **flags)
