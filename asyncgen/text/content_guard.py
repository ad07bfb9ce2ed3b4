"""Find out which control tokens of a rendered conversation are its template's own.

The conversation is rendered a second time, with a character in place of each sign of what the
client said that a control token could be made of: ``<``, ``|`` and ``>``. All else of it must come
out alike, character by character. A control token that is still found is the template's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from random import randrange
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tokenizers import Tokenizer as Backend

    from asyncgen.text.control_tokens import ControlTokens

SpecialTokensInContent: TypeAlias = Literal["allow", "text"]

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool"})
_OF_FORM: Final = ("role", "type")
_LONGEST: Final = 64
"""Characters of a text that a template looks for; longer ones are what it writes."""

_MOST_DRAWN: Final = 64

_PLAIN: Final = (str, int, float, type(None))


def check_special_tokens_in_content(value: object) -> SpecialTokensInContent:
    """Return the value of the parameter of this name.

    Raises:
        InvalidRequestError: It is another one.
    """
    if value == "allow" or value == "text":
        return value
    raise InvalidRequestError("special_tokens_in_content", value, 'use "allow" or "text"')


def signs_of(text: str) -> frozenset[str]:
    """Return the characters of a token that are seldom in words, names and numbers."""
    return frozenset(
        each for each in text if not (each.isalnum() or each.isspace() or each in "_▁Ġ")
    )


def control_texts(backend: Backend, template: str, named: Iterable[str] = ()) -> frozenset[str]:
    """Return the tokens that control a model which is prompted with a chat template.

    They are the special tokens, and of the other added tokens those with signs in them that the
    template contains: some models mark their turns with such ones (``<｜User｜>`` of DeepSeek).

    Args:
        backend: The tokenizer.
        template: Jinja text.
        named: Tokens that the template has as variables.
    """
    written = [template, *named]
    return frozenset(
        token.content
        for token in backend.get_added_tokens_decoder().values()
        if token.special
        or signs_of(token.content)
        and any(token.content in text for text in written)
    )


@dataclass(frozen=True)
class ContentGuard:
    """What could become a control token in one template, with one tokenizer.

    Attributes:
        tokens: The control tokens.
        literals: Texts that stand in the template.
    """

    tokens: ControlTokens
    literals: frozenset[str]

    @cached_property
    def _signs(self) -> frozenset[str]:
        return frozenset().union(*map(signs_of, self.tokens.texts))

    @cached_property
    def _gaps(self) -> frozenset[str]:
        """What a client would have to say between parts of a token that the template writes."""
        longest = max(map(len, self.tokens.texts), default=0)
        ends = {text[-size:] for text in self.literals for size in range(1, longest)}
        begins = {text[:size] for text in self.literals for size in range(1, longest)}
        gaps = set(self.tokens.texts)
        for text in self.tokens.texts:
            sizes = range(1, len(text))
            heads = [0, *(size for size in sizes if text[:size] in ends)]
            tails = [0, *(size for size in sizes if text[-size:] in begins)]
            gaps |= {text[head : len(text) - tail] for head in heads for tail in tails}
        return frozenset(gaps - {""})

    @cached_property
    def _needed(self) -> list[frozenset[str]]:
        """Sets of which all must be in what a client says before anything can be wrong."""
        needed = {signs_of(gap) or frozenset({gap.lower()}) for gap in self._gaps}
        return [each for each in needed if not any(other < each for other in needed)]

    @cached_property
    def _has_words(self) -> bool:
        return not all(map(signs_of, self._gaps))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Finds what is replaced; and what the template looks for, which is left alone."""
        heads = {gap[:size] for gap in self._gaps for size in range(1, len(gap))}
        tails = {gap[-size:] for gap in self._gaps for size in range(1, len(gap))}

        def is_apart(text: str) -> bool:
            """Tell whether no control token can hold a part of a text."""
            sizes = range(1, len(text))
            return not (
                any(text in gap or gap in text for gap in self._gaps)
                or any(text[-size:] in heads or text[:size] in tails for size in sizes)
            )

        tested = [text for text in self.literals if len(text) <= _LONGEST and signs_of(text)]
        kept = [text for text in tested if any(map(str.isalnum, text)) and is_apart(text)]
        words = [gap for gap in self._gaps if not signs_of(gap)]
        forms = [f"(?P<kept>{_any_of(kept)})"] if kept else []
        forms += [f"[{re.escape(''.join(sorted(self._signs)))}]"] if self._signs else []
        forms += [f"(?i:{_any_of(words)})"] if words else []
        return re.compile("|".join(forms) or r"(?!)")

    def suspects(self, said: Any) -> bool:
        """Tell whether something that a client said could become a control token."""
        whole = "\n".join(text for _, text in self._texts("", said))
        if self.tokens.normalizer is not None:
            whole = f"{whole}\n{self.tokens.normalizer.normalize_str(whole)}"
        if self._has_words:
            whole = f"{whole}\n{whole.lower()}"
        return any(all(part in whole for part in needed) for needed in self._needed)

    def mask(self, said: Any, mark: str) -> Any:
        """Return what a client said with a mark in place of each sign that could do harm.

        Args:
            said: Texts in mappings and lists.
            mark: A character.
        """
        signs = self._signs_of_others(said)

        def replaced(found: re.Match[str]) -> str:
            if "kept" in self._pattern.groupindex and found["kept"] is not None:
                return found[0]
            return mark + found[0][1:]

        def masked(value: Any, *, is_key: bool = False) -> Any:
            if isinstance(value, str):
                if is_key and not any(sign in value for sign in self._signs):
                    return value
                value = self._pattern.sub(replaced, value)
                return value.translate(dict.fromkeys(signs, mark)) if signs else value
            if isinstance(value, Mapping):
                return {
                    masked(name, is_key=True): one if self._is_form(name, one) else masked(one)
                    for name, one in value.items()
                }
            return list(map(masked, value)) if isinstance(value, list | tuple) else value

        return masked(said)

    def culprit(self, said: Any) -> tuple[str, str]:
        """Return where a client said what cannot be kept apart, and what."""
        tokens = sorted(self.tokens.texts, key=len, reverse=True)
        tokens.sort(key=lambda token: token not in self.literals)  # first what it looks for
        texts = list(self._texts("", said))
        for token in tokens:
            for place, text in texts:
                if token in text:
                    return place, token
        for place, text in texts:
            for found in self._pattern.finditer(text):
                if found.lastgroup != "kept":
                    return place, found[0]
        return texts[0][0], ""

    def _signs_of_others(self, said: Any) -> list[int]:
        """Characters beyond ASCII that the normalizer makes signs of."""
        normalizer = self.tokens.normalizer
        if normalizer is None:
            return []
        used = set().union(*(text for _, text in self._texts("", said) if not text.isascii()))
        return [
            ord(each)
            for each in used
            if not each.isascii()
            and any(sign in normalizer.normalize_str(each) for sign in self._signs)
        ]

    def _texts(self, place: str, value: Any) -> Iterator[tuple[str, str]]:
        """Yield the texts within a value, each with its place, names in mappings among them."""
        if isinstance(value, str):
            yield place, value
        elif isinstance(value, Mapping):
            for name, one in value.items():
                inside = f"{place}.{name}" if place else str(name)
                if isinstance(name, str):
                    yield inside, name
                if not self._is_form(name, one):
                    yield from self._texts(inside, one)
        elif isinstance(value, list | tuple):
            for number, one in enumerate(value):
                yield from self._texts(f"{place}[{number}]", one)

    def _is_form(self, name: object, value: object) -> bool:
        """Tell whether an entry is a word of the form, such as a role, and nothing that is said."""
        return (
            name in _OF_FORM
            and isinstance(value, str)
            and (value in _ROLES or value in self.literals and not signs_of(value))
        )


def check_plain(place: str, value: object) -> None:
    """Refuse what is no text, number, list or mapping: what a template writes of it is not known.

    Raises:
        InvalidRequestError: Names the place.
    """
    if isinstance(value, Mapping):
        for name, one in value.items():
            check_plain(f"{place}.{name}", one)
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            check_plain(f"{place}[{number}]", one)
    elif not isinstance(value, _PLAIN):
        allowed = (
            'a text, a number, a list or a mapping with `special_tokens_in_content="text"`, '
            f"and not a {type(value).__name__}"
        )
        raise InvalidRequestError(place, value, allowed)


def unused_character(text: str) -> str:
    """Return a character that a text does not have, which templates write as it is."""
    drawn = (chr(randrange(0xF0000, 0xFFFFE)) for _ in range(_MOST_DRAWN))  # foreseen by nobody
    for each in chain("\x7f", drawn):
        if each not in text:
            return each
    raise InvalidRequestError("messages", text, "a text that does not use every private character")


def is_masked(text: str, masked: str, mark: str) -> bool:
    """Tell whether a text differs from another in nothing but its marks."""
    if len(text) != len(masked):
        return False
    at = 0
    for piece in masked.split(mark):
        if not text.startswith(piece, at):
            return False
        at += len(piece) + 1
    return True


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
