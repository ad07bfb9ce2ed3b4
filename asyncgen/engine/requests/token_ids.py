"""Token ids among the parameters of a request: whole numbers of the model's vocabulary.

One that is not would change nothing and say nothing at best (a token suppressed that never comes),
and at worst be met in the middle of a step, where others decode as well. Knows names and numbers;
no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["check_token_ids", "join_equal_ids"]

_ONE = "pad_token_id bos_token_id forced_bos_token_id".split()
_SOME = (
    "eos_token_id forced_eos_token_id decoder_start_token_id suppress_tokens begin_suppress_tokens"
).split()
_SETS = "eos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens".split()
"""Lists in which naming an id twice asks for nothing more."""
_SEQUENCES = "bad_words_ids sequence_bias force_words_ids".split()
_WRITTEN = frozenset({"forced_bos_token_id", "forced_eos_token_id"})
"""Ids that are put into the output, wherever they were asked for."""
_NEVER_EMPTY = frozenset({"forced_eos_token_id"})


def check_token_ids(config: object, given: Collection[str], vocab_size: int) -> None:
    """Refuse token ids that are none.

    A model's own defaults may name ids that it does not have (a tokenizer that is larger than the
    model): such an id never comes, and only what is put into the output must exist.

    Args:
        config: Has the fields of ``GenerationConfig`` as attributes; ``None`` is not given.
        given: Names of the fields that the request itself gave.
        vocab_size: Token ids are below this.

    Raises:
        InvalidRequestError: Names the field, the value and what is allowed.
    """
    for name in (*_ONE, *_SOME, *_SEQUENCES):
        value = getattr(config, name, None)
        if value is None:
            continue
        ids = list(_ids(name, value))
        if not ids and name in _NEVER_EMPTY:
            raise InvalidRequestError(name, value, "a token id or a non-empty list of them")
        if name not in given and name not in _WRITTEN:
            continue
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                allowed = f"token ids are from 0 to {vocab_size - 1}"
                raise InvalidRequestError(name, token_id, allowed)


def join_equal_ids(config: object) -> None:
    """Name every id once where the order alone tells nothing: a step looks at each of them.

    Args:
        config: Has the fields of ``GenerationConfig`` as attributes; its lists are replaced, never
            changed. What is no list of whole numbers is left to `check_token_ids`.
    """
    for name in _SETS:
        value = getattr(config, name, None)
        if isinstance(value, list | tuple) and all(map(_is_id, value)):
            setattr(config, name, list(dict.fromkeys(value)))


def _ids(name: str, value: Any) -> Iterator[int]:
    """All ids of a field, each of them a whole number."""
    if name in _SEQUENCES:
        yield from _of_sequences(name, value)
        return
    rows = value.tolist() if hasattr(value, "tolist") else value
    several = name in _SOME and not _is_id(rows)
    if several and not isinstance(rows, list | tuple | set | frozenset):
        raise InvalidRequestError(name, value, "a token id or a list of token ids")
    for token_id in rows if several else [rows]:
        if not _is_id(token_id):
            allowed = "a token id or a list of token ids" if several else "a token id"
            raise InvalidRequestError(name, value, allowed)
        yield token_id


def _of_sequences(name: str, value: Any) -> Iterator[int]:
    """Ids of words and biases, whose form is checked by those who use them."""
    if name == "sequence_bias" and isinstance(value, list | tuple):
        value = [pair[0] for pair in value if isinstance(pair, list | tuple) and pair]
    if name == "force_words_ids" and isinstance(value, list):
        value = [form for word in value for form in _forms(word)]
    for word in value if isinstance(value, dict | list | tuple) else ():
        for token_id in word if isinstance(word, list | tuple) else ():
            if _is_id(token_id):
                yield token_id


def _forms(word: Any) -> list[Any]:
    """A word to be forced, or each of its forms."""
    return word if isinstance(word, list) and word and isinstance(word[0], list) else [word]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
