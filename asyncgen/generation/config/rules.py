"""Rules that the value of a single parameter is held to: what they accept, in words.

Knows no parameter by name; which rule is whose is in `parameters`. Values of other libraries become
plain ones first (`plain`), so that rules and files know one kind: what has a ``tolist`` is asked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from asyncgen.errors import InvalidRequestError
from asyncgen.types import has_list

MOST_ROWS = 4096
"""Samples, or beams, of one request: far more than ever share a step. A larger number is a slip of
the keyboard, which must not make the engine lay out a thousand million rows."""

MOST_STOP_CHARACTERS = 2**14
"""Of all stop strings of a request together: they are searched for at every token."""

MOST_LABEL_CHARACTERS = 256
"""Of a name or a salt, which are kept as long as what they stand for."""

MOST_BREAKERS, MOST_BREAKER_BYTES = 64, 40
"""Of the texts that end a repetition, and of each of them."""

MOST_TOP_LOGPROBS = 100
MOST_PROMPT_LOGPROBS = 20

_OF_THE_ENGINE = frozenset(
    """
    self conversation messages tools documents chat_template add_generation_prompt
    continue_final_message tokenize padding truncation max_length return_tensors return_dict
    special_tokens_in_content trust_template
    """.split()
)
"""Names of a rendering that are no variables of a chat template, or not a request's to say."""

_WORD = 2**63

Rule: TypeAlias = Callable[[Any], str | None]
"""Says what is allowed, in words, where a value is not; ``None`` where it is."""


def require(name: str, value: object, rule: Rule, note: str = "") -> None:
    """Hold a value to a rule.

    Args:
        name: Of the parameter.
        value: What was given.
        rule: The rule.
        note: What else is allowed.

    Raises:
        InvalidRequestError: Names the parameter, the value and what is allowed.
    """
    allowed = rule(value)
    if allowed is not None:
        raise InvalidRequestError(name, value, allowed + note)


def must_be(allowed: str) -> str:
    """Say what a value must be: the one wording of all rules.

    Args:
        allowed: The accepted values in words, as `Range.allowed`.
    """
    return f"must be {allowed}"


@dataclass(frozen=True, slots=True)
class Range:
    """Finite numbers between two limits, of a size that a machine computes with.

    Attributes:
        low: The smallest; ``None`` for no limit.
        high: The largest; ``None`` for no limit.
        whole: Whether fractions are refused.
        above: Whether ``low`` itself is refused.
        below: Whether ``high`` itself is refused.
        note: What else there is to say.
    """

    low: float | None = None
    high: float | None = None
    whole: bool = False
    above: bool = False
    below: bool = False
    note: str = ""

    def __call__(self, value: Any) -> str | None:
        """Apply the rule; see `Rule`."""
        is_number = _is_whole(value) or not self.whole and _is_real(value)
        if not is_number:
            return must_be(self.allowed)
        low, high = self.low, self.high
        over = low is None or (value > low if self.above else value >= low)
        under = high is None or (value < high if self.below else value <= high)
        return None if over and under else must_be(self.allowed)

    @property
    def allowed(self) -> str:
        """The numbers in words."""
        words, low, high = "a whole number" if self.whole else "a number", self.low, self.high
        if low is None:
            words = words if self.whole else "a finite number"
        elif high is None:
            words += f" {'above' if self.above else 'of at least'} {_limit(low)}"
        elif self.above:
            words += (
                f" above {_limit(low)} and {'below' if self.below else 'at most'} {_limit(high)}"
            )
        else:
            words += f" from {_limit(low)} to {'below ' if self.below else ''}{_limit(high)}"
        return f"{words}; {self.note}" if self.note else words


def _limit(number: float | None) -> str:
    """Show a limit with all its digits; nothing where there is none."""
    return "" if number is None else str(number) if isinstance(number, int) else f"{number:g}"


@dataclass(frozen=True, slots=True)
class Documented:
    """A rule of the reference documents, which `GenerationConfig` itself enforces.

    Attributes:
        allowed: What is accepted, in words.
        accepts: True for an acceptable value. A TypeError inside it means a wrong type.
        rule: What requests are held to, where that is stricter.
    """

    allowed: str
    accepts: Callable[[Any], bool]
    rule: Rule | None = None

    def __call__(self, value: Any) -> str | None:
        """Apply the rule to a parameter of a request; see `Rule`."""
        if self.rule is not None:
            return self.rule(value)
        try:
            return None if self.accepts(value) else must_be(self.allowed)
        except TypeError:
            return must_be(self.allowed)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_WORD <= value < _WORD


def _is_real(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def switch(value: object) -> str | None:
    """Take True and False alone."""
    return None if isinstance(value, bool) else must_be("True or False")


def seed(value: object) -> str | None:
    """Take what ``torch.manual_seed`` takes, which reduces it to 64 bits."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    is_in_range = is_integer and -_WORD <= value < 2 * _WORD  # type: ignore[operator]
    return None if is_in_range else must_be("a whole number from -2**63 to 2**64 - 1")


def integer(value: object) -> str | None:
    """Of any size: it is only compared."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return None if is_integer else must_be("a whole number")


def early_stopping(value: object) -> str | None:
    """Take the ways in which a beam search may end."""
    return (
        None if isinstance(value, bool) or value == "never" else must_be('True, False or "never"')
    )


def end_ids(value: Any) -> str | None:
    """Take a token id, or a list of them."""
    ids = value if isinstance(value, list | tuple) else [value]
    good = all(_is_whole(token_id) and token_id >= 0 for token_id in ids)
    return None if good else must_be("a token id or a list of token ids")


def token_ids(value: Any) -> str | None:
    """Take a token id, or a list of them, also of tokens that do not exist."""
    ids = value if isinstance(value, list | tuple | set | frozenset) else [value]
    return None if all(map(_is_whole, ids)) else must_be("a token id or a list of token ids")


def is_positive(value: Any) -> bool:
    """Tell whether a value is above 0."""
    return bool(value > 0)


def is_early_stopping(value: object) -> bool:
    """Tell whether a value says when a beam search ends, as the reference takes it."""
    return value in {True, False, "never"}


def one_id(value: object) -> str | None:
    """Take a token id, also as a tensor."""
    is_id = isinstance(value, int) and not isinstance(value, bool) or has_list(value)
    return None if is_id else must_be("a token id")


def stops(value: Any) -> str | None:
    """Strings that a text can hold, and no more of them than a step has time for."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(s, str) and s for s in texts):
        return must_be("a non-empty string or a list of them")
    length = sum(map(len, texts))
    if length > MOST_STOP_CHARACTERS:
        return f"{length} characters in all; at most {MOST_STOP_CHARACTERS}"
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        return f"no Unicode text: a lone surrogate at position {error.start}"
    return None


def breakers(value: Any) -> str | None:
    """Take short texts, as each is looked for in every token of the vocabulary."""
    good = isinstance(value, list | tuple) and all(isinstance(s, str) and s for s in value)
    if not good or len(value) > MOST_BREAKERS:
        return must_be(f"a list of at most {MOST_BREAKERS} texts that are not empty")
    try:
        longest = max((len(text.encode()) for text in value), default=0)
    except UnicodeEncodeError as error:
        return f"no Unicode text: a lone surrogate at position {error.start}"
    return (
        None
        if longest <= MOST_BREAKER_BYTES
        else must_be(f"texts of at most {MOST_BREAKER_BYTES} bytes")
    )


def overflow(value: object) -> str | None:
    """Take the ways in which a prompt that is too long is cut."""
    ways = ("refuse", "truncate_middle", "rolling")
    return None if value in ways else must_be(f"one of {', '.join(ways)}")


def truncation(value: object) -> str | None:
    """Take the same as the Responses API says it."""
    return None if value in ("disabled", "auto") else must_be("`disabled` or `auto`")


def generated_ids(value: Any) -> str | None:
    """Take the tokens of one sample, or of each."""
    lists = value if _are_lists(value) else [value]
    good = all(isinstance(ids, list | tuple) and all(map(_is_whole, ids)) for ids in lists)
    return None if good else must_be("a list of token ids, or one such list for each sample")


def _are_lists(value: Any) -> bool:
    """Tell whether a list holds lists."""
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], list | tuple)


def label(value: object) -> str | None:
    """Take a short text that is compared and never shown to a model."""
    good = isinstance(value, str) and 0 < len(value) <= MOST_LABEL_CHARACTERS
    try:
        good = good and bool(str(value).encode())
    except UnicodeEncodeError:
        good = False
    return None if good else must_be(f"a text of 1 to {MOST_LABEL_CHARACTERS} characters")


def template_variables(value: object) -> str | None:
    """Take what a chat template may be told beside the messages."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return must_be(
            'a dict of the template\'s own variables, such as {"enable_thinking": False}'
        )
    reserved = next((name for name in value if name in _OF_THE_ENGINE), None)
    return reserved and f"`{reserved}` is no variable that a request may set; leave it out"


def schema(value: object) -> str | None:
    """Take a JSON schema, or a text that may be one."""
    good = isinstance(value, dict | bool) or isinstance(value, str) and bool(value)
    return None if good else must_be("a JSON schema: a dict, or its JSON as a text")


def grammar(value: object) -> str | None:
    """Take a text that may be a grammar."""
    return None if isinstance(value, str) and value else must_be("a text that is not empty")


def choice(value: Any) -> str | None:
    """Take texts to choose among."""
    good = isinstance(value, list | tuple) and all(isinstance(s, str) and s for s in value)
    if not good or not value:
        return must_be("a list of texts that are not empty")
    return None if len(value) <= MOST_ROWS else f"{len(value)} texts; at most {MOST_ROWS}"


def callables(value: object) -> str | None:
    """Take a list of what can be called."""
    good = isinstance(value, list) and all(map(callable, value))
    return None if good else must_be("a list of callables")


def function(value: object) -> str | None:
    """Take what can be called."""
    return None if callable(value) else must_be("a function")


def method(value: object) -> str | None:
    """Take a decoding method, or where to find one."""
    good = callable(value) or isinstance(value, str | os.PathLike)
    return None if good else must_be("a function, a folder, or the id of a repository")


def config(value: object) -> str | None:
    """Take what has the face of a `GenerationConfig`."""
    return None if has("get_generation_mode")(value) else must_be("a GenerationConfig")


def has(attribute: str) -> Callable[[object], bool]:
    """Tell whether a value has a method of this name."""
    return lambda value: callable(getattr(value, attribute, None))


def is_watermark(value: object) -> bool:
    """Tell whether a value can describe a watermark."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value)
    validate = getattr(value, "validate", None)
    if not callable(validate):
        raise TypeError
    validate()
    return True


def are_token_ids(value: Any) -> bool:
    """Tell whether a value could be a list of token ids."""
    return not isinstance(value, str) and all(hash(token) is not None for token in value)
