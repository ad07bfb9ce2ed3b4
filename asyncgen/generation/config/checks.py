"""Check parameters before any work: names, values, token ids and combinations.

A single value is held to its rule in the table of `parameters`, several together to the tables of
`combinations`. A parameter that would be off, or of no effect, is an error that names it: nothing
is dropped or reinterpreted in silence.

Knows nothing of models or tensors; of a configuration it reads the attributes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError, did_you_mean, shorten
from asyncgen.generation.config import rules
from asyncgen.generation.config.combinations import SAMPLES, Parameters, check_combinations
from asyncgen.generation.config.modes import GenerationMode, base_mode
from asyncgen.generation.config.parameters import BY_NAME, FIELDS, STREAM_PARAMETERS, SWITCHES
from asyncgen.generation.config.rules import Documented, must_be, require
from asyncgen.types import has_list

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from asyncgen.generation.config.parameter import Parameter


_DOCUMENTED = [(each.name, each.rule) for each in FIELDS if isinstance(each.rule, Documented)]
_AWAITED = [each for each in FIELDS if each.awaits is not None]
_MOST_ID = 2**63
_IDS = [(each.name, each.ids) for each in FIELDS if each.ids is not None]


@dataclass(frozen=True, slots=True)
class Issue:
    """A flag that will have no effect as things stand.

    Attributes:
        name: The field.
        value: Its value.
        reason: Why it has no effect, and the remedy.
    """

    name: str
    value: object
    reason: str

    def __str__(self) -> str:
        """Render as one line of a list."""
        return f"`{self.name}` is {shorten(self.value)}: {self.reason}"


def check_names(params: Mapping[str, object]) -> None:
    """Refuse names that are unknown or of no use on a stream.

    Raises:
        InvalidRequestError: Names the parameter, and the nearest known name for a typo.
    """
    for name, value in params.items():
        parameter = BY_NAME.get(name)
        if parameter is not None and parameter.elsewhere:
            raise InvalidRequestError(
                name, value, f"not a parameter of a stream; {parameter.elsewhere}"
            )
        if parameter is None and name not in _of_method(params):
            hint = did_you_mean(name, STREAM_PARAMETERS)
            raise InvalidRequestError(name, value, f"unknown parameter{hint}")


def _of_method(params: Mapping[str, object]) -> Collection[str]:
    """Further names that a custom decoding method takes."""
    method = params.get("custom_generate") or params.get("recipe")
    if callable(method):
        from asyncgen.generation.custom_methods import extra_parameters

        return extra_parameters(method)
    # What a method takes that was not loaded yet, it says itself.
    return () if method is None else params


def check_values(values: Mapping[str, Any]) -> None:
    """Hold values to the rules of the table.

    Args:
        values: Parameters by name; ``None`` is not given.

    Raises:
        InvalidRequestError: Names the parameter, its value and what is allowed.
    """
    for name, value in values.items():
        parameter = BY_NAME.get(name)
        if value is not None and parameter is not None and parameter.rule is not None:
            require(name, value, parameter.rule)


_LENIENT = ("early_stopping", "max_length", "pad_token_id", "eos_token_id")
_RANGES = [
    (field, field.rule)
    for field in FIELDS
    if field.rule not in (None, rules.switch) and field.name not in _LENIENT
]
"""What a file's fields are held to. A length may be overridden, and is looked at where it is
known; ids may be of tokens that a model does not have, see `check_token_ids`."""


def check_config(config: object, given: Collection[str]) -> None:
    """Hold what a request did not give itself, but a model's own file, to the same ranges.

    A field whose switch is off is not used, so any number may stand in it: many files have a
    `temperature` of 0, or a `top_k` of -1, beside `do_sample` of false.

    Args:
        config: Complete configuration.
        given: Fields that were checked already.

    Raises:
        InvalidRequestError: Names the field, its value and what is allowed.
    """
    for field, rule in _RANGES:
        value = getattr(config, field.name, None)
        if value is None or value is field.default or field.name in given:
            continue
        if field.needs is None or not _is_unused(field, config):
            require(field.name, value, rule)


def _is_unused(field: Parameter, config: Any) -> bool:
    """Tell whether a field needs a switch that is off."""
    is_off = field.needs is not None and _IS_OFF[field.needs](getattr(config, field.needs, None))
    return is_off and not (field.name == "top_k" and _chooses(config))


def hard_rules(config: Any) -> None:
    """Refuse values and combinations that can never work, as the reference documents do.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.

    Raises:
        InvalidRequestError: Names the field, its value and what is allowed.
        TypeError: A value is of a type that cannot be compared with the allowed ones.
    """
    for name, rule in _DOCUMENTED:
        value = getattr(config, name)
        if value is None:
            continue
        try:
            accepted = rule.accepts(value)
        except TypeError as error:
            message = f"`{name}` is {shorten(value)}: {must_be(rule.allowed)}"
            raise TypeError(message) from error
        if not accepted:
            raise InvalidRequestError(name, value, must_be(rule.allowed))
    for name in SWITCHES:
        value = getattr(config, name)
        if value is not None and not isinstance(value, bool):
            raise InvalidRequestError(name, value, "must be True or False, without quotes")
    check_numbers(config, _COMPARED)
    pad = config.pad_token_id
    if pad is not None and rules.one_id(pad) is not None:
        raise TypeError(f"`pad_token_id` is {shorten(pad)}: {rules.one_id(pad)}")
    ends = config.eos_token_id
    if ends is not None and rules.token_ids(ends) is not None:
        raise TypeError(f"`eos_token_id` is {shorten(ends)}: {rules.token_ids(ends)}")
    count = config.num_return_sequences
    if count is not None and not isinstance(count, int | float):
        raise TypeError(f"`num_return_sequences` is {shorten(count)}: must be a number")
    if count is not None and count > 1:
        check_combinations(SAMPLES, Parameters(config))


_IS_OFF: Mapping[str, Callable[[Any], bool]] = {
    "do_sample": lambda value: value is not True,
    "num_beams": lambda value: value is None or value == 1,
    "use_cache": lambda value: value is False,
    "return_dict_in_generate": lambda value: value is not True,
}
"""The switches, and whether a value turns them off."""
_WITHOUT = {
    "do_sample": "only used when sampling; set `do_sample=True` or unset it",
    "num_beams": "only used with beams; set `num_beams` above 1 or unset it",
    "use_cache": "has no effect without a cache; set `use_cache=True` or unset it",
    "return_dict_in_generate": "ignored unless `return_dict_in_generate=True`",
}
"""What is said of a field that needs a switch which is off."""
_NEEDING = {switch: [each for each in FIELDS if each.needs == switch] for switch in _IS_OFF}


def minor_issues(config: Any, user_set: Collection[str] = ()) -> list[Issue]:
    """List the flags that will have no effect.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.
        user_set: Names the user just set; empty means all of them. Someone who switches
            `do_sample` or `num_beams` off is not told about flags that a model's own file set.

    Returns:
        One issue per flag, in a fixed order.
    """
    issues = []
    if config.pad_token_id is not None and config.pad_token_id < 0:
        reason = "should not be negative; padded batches will fail"
        issues.append(Issue("pad_token_id", config.pad_token_id, reason))
    for switch, is_off in _IS_OFF.items():
        if not is_off(getattr(config, switch)):
            continue
        silenced = switch in ("do_sample", "num_beams") and switch in user_set
        for field in _NEEDING[switch]:
            value = getattr(config, field.name)
            if value is None or value is field.default or _is_idle(field, value):
                continue
            if not _is_unused(field, config):
                continue
            if not silenced or field.name in user_set:
                issues.append(Issue(field.name, value, _WITHOUT[switch]))
    return issues


def _chooses(config: Any) -> bool:
    """Tell whether a choice is made among `top_k` tokens without drawing."""
    return bool(config.penalty_alpha) and base_mode(config) is GenerationMode.CONTRASTIVE_SEARCH


def _is_idle(field: Parameter, value: object) -> bool:
    """Tell whether an ineffective field is nothing to warn of."""
    if field.needs == "return_dict_in_generate":
        return value is not True
    if field.needs == "use_cache":
        return False
    return field.is_neutral(value)


_WITHOUT_TEXT = [
    each.name
    for each in FIELDS
    if "str" not in each.type and ("int" in each.type or "float" in each.type)
]
_SINGLE = {each.name for each in FIELDS if each.type in ("int", "float")}
_FRACTIONS = {each.name for each in FIELDS if each.type == "float"}


_COMPARED = ("top_k", "penalty_alpha", "num_beam_groups")
"""Numbers that tell a strategy from another."""


def check_numbers(config: Any, names: Collection[str] = _WITHOUT_TEXT) -> None:
    """Refuse texts and objects where numbers belong, and several numbers where one does.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.
        names: Fields to look at.

    Raises:
        InvalidRequestError: Names the field and its value.
    """
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, str) or isinstance(value, list) and any(map(_is_text, value)):
            allowed = "must be a number, or numbers; strings of digits are not converted"
            raise InvalidRequestError(name, value, allowed)
        if name in _SINGLE and isinstance(value, list | tuple | dict):
            raise InvalidRequestError(name, value, "must be a number")
        if name in _FRACTIONS and isinstance(value, int) and abs(value) >= _MOST_ID:
            raise InvalidRequestError(name, value, "must be a number of at most 63 bits")


MOST_OF_DEFAULTS = 2**20
MOST_LISTS = 2**15
"""Characters of a model's defaults as JSON, and lists in them: each request makes a copy."""

_MOST_NESTED = 32
_MOST = {
    **dict.fromkeys(("num_beams", "num_return_sequences"), rules.MOST_ROWS),
    "prefill_chunk_size": 2**31 - 1,
}
"""Largest whole numbers."""


def check_extent(config: object) -> None:
    """Refuse a model's own defaults that each request would take long to copy, or too many rows.

    Args:
        config: Has the fields of ``GenerationConfig`` as attributes.

    Raises:
        InvalidRequestError: They are too many, or nested too deeply; names the largest.
    """
    for name, most in _MOST.items():
        value = getattr(config, name, None)
        if value is not None and not (type(value) is int and 0 <= value <= most):
            raise InvalidRequestError(name, value, f"a whole number, at most {most}")
    for name, value in vars(config).items():
        if _is_deep(value):
            raise InvalidRequestError(name, value, f"lists in lists, at most {_MOST_NESTED} deep")
    texts = {name: json.dumps(value, default=repr) for name, value in vars(config).items()}
    for what, most, size_of in (
        ("characters as JSON", MOST_OF_DEFAULTS, len),
        ("lists", MOST_LISTS, lambda text: text.count("[") + text.count("{")),
    ):
        sizes = {name: size_of(text) for name, text in texts.items()}
        if sum(sizes.values()) > most:
            name = max(sizes, key=sizes.__getitem__)
            allowed = f"it has {sizes[name]} {what}, all defaults together at most {most}"
            raise InvalidRequestError(name, getattr(config, name), allowed)


def _is_deep(value: object, left: int = _MOST_NESTED) -> bool:
    if isinstance(value, dict):
        return left == 0 or any(_is_deep(each, left - 1) for each in value.values())
    if isinstance(value, list | tuple):
        return left == 0 or any(_is_deep(each, left - 1) for each in value)
    return False


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def check_supported(config: Any) -> None:
    """Refuse every field that asks for something that is not served yet.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.

    Raises:
        InvalidRequestError: Names the field, its value and what is missing.
    """
    for field in _AWAITED:
        value = getattr(config, field.name)
        if value is not None and not field.is_neutral(value):
            allowed = f"not supported yet; {field.awaits} is not implemented, unset it"
            raise InvalidRequestError(field.name, value, allowed)


def check_made_once(
    name: str, noun: str, made: Collection[object], given: Collection[object]
) -> None:
    """Refuse an object of a user where the configuration makes one of its class as well.

    Args:
        name: The argument that the user's objects came in.
        noun: What one of them is called.
        made: What the configuration asked for.
        given: What the user passed.

    Raises:
        InvalidRequestError: Names the argument and the class.
    """
    kinds = set(map(type, made))
    for each in given:
        if type(each) in kinds:
            allowed = f"the configuration already makes such a {noun}; pass either the object or"
            allowed += " the configuration field"
            raise InvalidRequestError(name, type(each).__name__, allowed)


def check_token_ids(config: object, given: Collection[str], vocab_size: int) -> None:
    """Refuse token ids that are none.

    A token that does not exist would change nothing and say nothing at best, and at worst be met
    in the middle of a step that others share. A model's own defaults may name ids that it does not
    have (those of a tokenizer that is larger than the model): such an id never comes, and only
    what is put into the output must exist.

    Args:
        config: Has the fields of ``GenerationConfig`` as attributes; ``None`` is not given.
        given: Names of the fields that the request itself gave.
        vocab_size: Token ids are below this.

    Raises:
        InvalidRequestError: Names the field, the value and what is allowed.
    """
    for name, kind in _IDS:
        value = getattr(config, name, None)
        if value is None:
            continue
        if kind.words:
            ids = _ids_of_words(name, value)
        else:
            ids = list(_ids(name, value, several=kind.several))
        if not ids and kind.is_written and kind.several:
            raise InvalidRequestError(name, value, "must be a token id or a non-empty list of them")
        if name not in given and not kind.is_written:
            continue
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                allowed = f"token ids are from 0 to {vocab_size - 1}"
                raise InvalidRequestError(name, token_id, allowed)


_NAMED_IDS = (
    *("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id"),
    *("suppress_tokens", "begin_suppress_tokens"),
)
_FORCED_IDS = ("forced_bos_token_id", "forced_eos_token_id")


def check_kinds_of_ids(config: object, vocab_size: int) -> None:
    """Refuse what is no token id in a model's own file; whether it has such a token is told later.

    Many files name -1 as padding, or a token of a larger tokenizer: it matters where it is used.
    A token that is forced must be there.

    Args:
        config: Has the fields of ``GenerationConfig`` as attributes.
        vocab_size: Token ids are below this.

    Raises:
        InvalidRequestError: Names the field, the value and what is allowed.
    """
    for name in (*_NAMED_IDS, *_FORCED_IDS):
        value = getattr(config, name, None)
        ids: Any = value if isinstance(value, list | tuple) else [value]
        if value is not None and not all(_is_id(each) and abs(each) < _MOST_ID for each in ids):
            raise InvalidRequestError(name, value, "must be a token id, or null")
        if (
            name in _FORCED_IDS
            and value is not None
            and not all(0 <= each < vocab_size for each in ids)
        ):
            raise InvalidRequestError(name, value, f"token ids are from 0 to {vocab_size - 1}")


def ends_without_token(config: Any, vocab_size: int) -> list[int]:
    """Return the ids of a configuration that should end a sequence and never come.

    Args:
        config: Has ``eos_token_id``, checked.
        vocab_size: Token ids are below this.
    """
    ends = config.eos_token_id
    ids = ends if isinstance(ends, list | tuple) else [] if ends is None else [ends]
    return [each for each in ids if not 0 <= each < vocab_size]


def join_equal_ids(config: object) -> None:
    """Name every id once where naming it twice asks for nothing more: a step looks at each.

    Args:
        config: Has the fields of ``GenerationConfig`` as attributes; its lists are replaced, never
            changed. What is no list of whole numbers is left to `check_token_ids`.
    """
    for name, kind in _IDS:
        value = getattr(config, name, None) if kind.is_set else None
        if isinstance(value, list | tuple) and all(map(_is_id, value)):
            setattr(config, name, list(dict.fromkeys(value)))


def _ids(name: str, value: Any, *, several: bool) -> Iterator[int]:
    """All ids of a field, each of them a whole number."""
    is_plain = isinstance(value, int | list | tuple)
    rows = value if is_plain or not has_list(value) else value.tolist()
    allowed = "must be a token id"
    if several and not _is_id(rows):
        allowed = "must be a token id or a list of token ids"
        if not isinstance(rows, list | tuple | set | frozenset):
            raise InvalidRequestError(name, value, allowed)
    else:
        rows = [rows]
    for token_id in rows:
        if not _is_id(token_id):
            raise InvalidRequestError(name, value, allowed)
        yield token_id


def _ids_of_words(name: str, value: Any) -> list[int]:
    """Ids of words and biases, as far as their form is the right one."""
    if name == "sequence_bias" and isinstance(value, list | tuple):
        value = [pair[0] for pair in value if isinstance(pair, list | tuple) and pair]
    if name == "force_words_ids" and isinstance(value, list):
        value = [form for word in value for form in _forms(word)]
    words = value if isinstance(value, dict | list | tuple) else ()
    ids = list(chain.from_iterable([word for word in words if isinstance(word, list | tuple)]))
    # Of a table as long as the vocabulary, not each is looked at by itself.
    return ids if set(map(type, ids)) == {int} else list(filter(_is_id, ids))


def _forms(word: Any) -> list[Any]:
    """A word to be forced, or each of its forms."""
    return word if isinstance(word, list) and word and isinstance(word[0], list) else [word]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
