"""Hold the settings of a tokenizer's files to their kinds, before anything reads them.

A file that says ``"false"`` in quotes, or 3 for a side, is refused with its name, the key, the
value and what is allowed: nothing is guessed. Keys that nothing here reads may hold anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from asyncgen.errors import MOST_NAME, ModelLoadError, clip, shorten
from asyncgen.text.special_tokens import ROLES

if TYPE_CHECKING:
    from pathlib import Path

Rule: TypeAlias = tuple[Callable[[Any], bool], str]
"""Test of a value that is not null, and what is allowed, in words."""

NO_MAX_LENGTH: Final = int(1e30)
"""``model_max_length`` of a tokenizer whose files give none, as in the reference."""

_MOST_EXTRA_IDS: Final = 10_000
_MOST_ID: Final = 2**32 - 1
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")
_SIDES: Final = ("left", "right")


def is_token(value: object) -> bool:
    """Tell whether a value is a token as files have it: a text, or an object with one."""
    if isinstance(value, Mapping):
        flags = (value.get(name) for name in _FLAGS)
        return isinstance(value.get("content"), str) and all(
            flag is None or isinstance(flag, bool) for flag in flags
        )
    return isinstance(value, str)


def _is_role(value: object) -> bool:
    text = value.get("content") if isinstance(value, Mapping) else value
    return is_token(value) and text != ""


def _are_tokens(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(is_token, value.values()))
    return isinstance(value, list) and all(map(is_token, value))


def _are_tokens_by_id(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        key.isascii()
        and key.isdigit()
        and int(key[:11]) <= _MOST_ID
        and isinstance(entry, Mapping)
        and is_token(entry)
        for key, entry in value.items()
    )


def _is_length(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value >= 1 and (value == math.inf or value == int(value))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST_EXTRA_IDS


def _is_template(value: object) -> bool:
    if isinstance(value, list):
        return all(
            isinstance(entry, Mapping)
            and all(isinstance(entry.get(key), str) for key in ("name", "template"))
            for entry in value
        )
    if isinstance(value, Mapping):
        return all(isinstance(text, str) for text in value.values())
    return isinstance(value, str)


_SWITCH: Final[Rule] = (lambda value: isinstance(value, bool), "true or false, without quotes")
_TOKEN: Final[Rule] = (_is_role, 'a text, or an object with its "content" and flags')
_TOKENS: Final[Rule] = (_are_tokens, "a list of tokens, or tokens by name")
_SIDE: Final[Rule] = (lambda value: value in _SIDES, '"left" or "right"')

_TOKEN_RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        ROLES,
        _TOKEN,
    ),
    **dict.fromkeys(("additional_special_tokens", "extra_special_tokens"), _TOKENS),
}
"""Rules of ``special_tokens_map.json``."""

_CONFIG_RULES: Final[Mapping[str, Rule]] = {
    **_TOKEN_RULES,
    **dict.fromkeys(
        (
            "add_bos_token",
            "add_eos_token",
            "add_prefix_space",
            "clean_up_tokenization_spaces",
            "legacy",
        ),
        _SWITCH,
    ),
    "padding_side": _SIDE,
    "truncation_side": _SIDE,
    "model_max_length": (_is_length, "a whole number from 1, or Infinity for no limit"),
    "extra_ids": (_is_count, f"a whole number from 0 to {_MOST_EXTRA_IDS}"),
    "tokenizer_class": (lambda value: isinstance(value, str), "the name of a class"),
    "chat_template": (_is_template, 'a text, texts by name, or a list of "name" and "template"'),
    "added_tokens_decoder": (_are_tokens_by_id, 'objects with "content" and flags, by id'),
}
"""Rules of ``tokenizer_config.json``."""

_NEVER_NULL: Final = ("padding_side", "truncation_side")


def check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Hold the content of ``tokenizer_config.json`` to its kinds.

    Raises:
        ModelLoadError: Names the file, the key, the value and what is allowed.
    """
    for key in _NEVER_NULL:
        if key in settings and settings[key] is None:
            _refuse(file, key, None, _SIDE[1])
    _check(file, settings, _CONFIG_RULES)


def check_token_map(file: Path, tokens: Mapping[str, Any]) -> None:
    """Hold the content of ``special_tokens_map.json`` to its kinds; errors as `check_settings`."""
    _check(file, tokens, _TOKEN_RULES)


def check_model_config(file: Path, config: Mapping[str, Any]) -> None:
    """Hold what ``config.json`` says of the tokenizer to its kind; errors as `check_settings`."""
    _check(file, config, {"tokenizer_class": _CONFIG_RULES["tokenizer_class"]})


def check_added_tokens(file: Path, tokens: Mapping[str, Any]) -> None:
    """Hold the content of ``added_tokens.json`` to its kinds; errors as `check_settings`."""
    for text, token in tokens.items():
        if type(token) is not int or not 0 <= token <= _MOST_ID or not text:
            _refuse(file, text, token, f"an id from 0 to {_MOST_ID} by the text of its token")


def _check(file: Path, settings: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    for key, (accepts, allowed) in rules.items():
        value = settings.get(key)
        if value is not None and not accepts(value):
            _refuse(file, key, _blamed(value, accepts), allowed)


def _blamed(value: Any, accepts: Callable[[Any], bool]) -> Any:
    """Return the entry that is wrong where there are many."""
    if accepts not in (_are_tokens, _are_tokens_by_id, _is_template):
        return value
    if isinstance(value, Mapping):
        entries = ({key: entry} for key, entry in value.items())
        return next((one for one in entries if not accepts(one)), value)
    if isinstance(value, list):
        return next((one for one in value if not accepts([one])), value)
    return value


def _refuse(file: Path, key: str, value: object, allowed: str) -> None:
    raise ModelLoadError(
        f"{file} has an entry of the wrong kind: `{clip(key, MOST_NAME)}` is {shorten(value)}: "
        f"must be {allowed}"
    )


def max_length(value: float | None) -> int:
    """Return ``model_max_length`` as a number of tokens; none and infinity are no limit."""
    return NO_MAX_LENGTH if value is None or value == math.inf else int(value)
