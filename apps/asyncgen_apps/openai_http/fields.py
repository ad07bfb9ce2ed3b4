"""The kinds of fields that bodies have, and what all of their parts have in common.

Long values are looked at entry by entry, so that other threads have their turn in between.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from asyncgen_apps.openai_http.schema_notes import note
from asyncgen_apps.serving.template_limits import too_large
from asyncgen_apps.serving.time_slices import give_way

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

T = TypeVar("T")

MAX_IDS = 2**18
"""Most token ids in one list: as many as the largest vocabularies have."""
MAX_SEQUENCES = 2**15
"""Most sequences of token ids in one field: laying them out blocks all other requests."""
MAX_SETTINGS = 32
MAX_WORDS = 1024
"""Most forced words, and most forms of one: each takes part in every step of every beam."""


def _encodable(text: str) -> str:
    """JSON can spell half a character; no text holds one."""
    give_way()
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not Unicode: a lone surrogate at position {error.start}") from None
    return text


def _same(value: T) -> T:
    """Between two entries of a long field, other threads have their turn."""
    give_way()
    return value


def _small(variables: Any) -> Any:
    """Refuse what is more than settings of a chat template."""
    reason = too_large(variables)
    if reason is not None:
        raise ValueError(reason)
    return variables


def _off(value: bool) -> bool:
    """Take a switch that asks for nothing."""
    if value:
        raise ValueError("only false")
    return value


def _as_sent(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Keep a whole number whole, so that an error tells it as it was sent."""
    check(value)
    return value


Text = Annotated[str, AfterValidator(_encodable)]
Integer = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**64)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False), WrapValidator(_as_sent)]
Bias = Annotated[Number, AfterValidator(_same)]
Boolean = Annotated[bool, Field(strict=True)]
Off = Annotated[Boolean, AfterValidator(_off)]

# Lists end at the first entry that does not fit: only one complaint is sent, and a million of them
# would hold up everybody.
TokenIds = Annotated[
    list[Integer], Field(fail_fast=True, max_length=MAX_IDS), AfterValidator(_same)
]
Sequences = Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_SEQUENCES)]
Biases = Annotated[list[tuple[TokenIds, Number]], Field(fail_fast=True, max_length=MAX_SEQUENCES)]
Forms = Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_WORDS)]
Words = Annotated[list[TokenIds | Forms], Field(fail_fast=True, max_length=MAX_WORDS)]
Texts = Annotated[list[Text], Field(fail_fast=True)]
Variables = Annotated[dict[Text, JsonValue], BeforeValidator(_small)]
Schema = dict[Text, JsonValue]
Setting = Boolean | Integer | Number | Text | TokenIds


def first_wrong(biases: Any) -> Any:
    """Keep one of the values that do not fit: only one complaint is sent."""
    if isinstance(biases, dict):
        for token, bias in biases.items():
            if type(bias) not in (int, float):
                return {token: bias}
    return biases


def few(settings: Any) -> Any:
    """Refuse a table that is too long to be one of settings."""
    if isinstance(settings, dict) and len(settings) > MAX_SETTINGS:
        raise ValueError(f"{len(settings)} entries: at most {MAX_SETTINGS}")
    return settings


@cache
def field_names(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of a model's fields, as a client spells them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def names_at(model: type[BaseModel], parts: Sequence[object]) -> set[str]:
    """Return the names that an object inside of a body may have.

    Args:
        model: Of the body.
        parts: Where the object is, as pydantic spells it.
    """
    models = {model}
    for part in parts:
        fields = [field for one in models for field in one.model_fields.items()]
        found = [field.annotation for name, field in fields if part in (name, field.alias)]
        if found:
            models = {one for kind in found for one in _models_in(kind)}
    return {name for one in models for name in field_names(one)}


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for one in get_args(kind):
        yield from _models_in(one)


class StrictModel(BaseModel):
    """Refuses what it does not know."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_one(cls, data: Any) -> Any:
        """Keep one of the unknown names: only one complaint is sent."""
        give_way()
        if not isinstance(data, dict):
            return data
        known = {name: data[name] for name in field_names(cls) if name in data}
        if len(known) == len(data):
            return data
        for name, value in data.items():
            if name not in known and not cls._is_idle(name, value):
                return {**known, name: value}
        return known

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the fields for the page and the document."""
        found = handler(schema)
        note(cls.__name__, handler.resolve_ref_schema(found))
        return found

    @classmethod
    def _is_idle(cls, name: object, value: object) -> bool:
        """Tell whether an unknown field asks for nothing and may be left out."""
        return False
