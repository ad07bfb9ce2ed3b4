"""Test that the applications' lists of parameters agree with the library's table."""

from __future__ import annotations

from asyncgen.generation.config.parameters import BY_NAME, PARAMETERS
from asyncgen_apps.cli.settings import SETTINGS, Setting, SettingError
from asyncgen_apps.gradio_chat.fields import FIELDS, Field
from asyncgen_apps.openai_http.request_schema import GenerationFields, RequestFields
from asyncgen_apps.websocket.params import REFUSED
from tests.cases import for_each

JSON_TYPES = {
    "int": "Integer",
    "float": "Number",
    "bool": "Boolean",
    "str": "Text",
    "list[int]": "TokenIds",
    "list[str]": "Texts",
    "int | list[int]": "Integer | TokenIds",
    "str | list[str]": "Text | Texts",
    "str | Sequence[str]": "Text | Texts",
    "list[list[int]]": "Sequences",
    "Sequence[int] | Sequence[Sequence[int]]": "TokenIds | Sequences",
    "dict[str, Any]": "Variables",
    "Sequence[dict[str, Any]]": "Tools",
    "str | dict[str, Any]": "Choice | NamedTool",
    "Sequence[int]": "TokenIds",
    "tuple[int, float]": "tuple[Integer, Number]",
}
"""How the HTTP schema writes a type of the table."""

WIDGETS = {"slider": "float", "integer": "int", "number": "float", "flag": "bool"}
"""What the widgets of the chat page give."""


def takes(name: str, value: object) -> bool:
    """Tell whether the table takes a value."""
    rule = BY_NAME[name].rule
    return value is None or rule is None or rule(value) is None


@for_each("setting", SETTINGS, ids=lambda setting: setting.name)
def test_settings_of_the_command_line(setting: Setting) -> None:
    row = BY_NAME[setting.stream_name]
    kinds: dict[str, type] = {"int": int, "float": float, "bool": bool}
    assert not row.elsewhere
    assert kinds.get(row.type, list) is setting.kind
    assert setting.default == row.default
    limits = () if row.range is None else (row.range.low, row.range.high)
    for limit in limits:
        for value in () if limit is None else (limit - 1, limit, limit + 1):
            assert takes(row.name, value) == _is_taken(setting, value)


def _is_taken(setting: Setting, value: float) -> bool:
    """Tell whether a setting takes a value."""
    try:
        return setting.check(value) == value
    except SettingError:
        return False


@for_each("field", FIELDS, ids=lambda field: field.name)
def test_fields_of_the_chat_page(field: Field) -> None:
    name = field.name if field.parameter is None else field.parameter
    if name:
        assert not BY_NAME[name].elsewhere
        assert BY_NAME[name].type == WIDGETS.get(field.kind, BY_NAME[name].type)
    if field.kind not in ("slider", "integer", "number"):
        return
    limits = [each for each in (field.range.low, field.range.high) if each is not None]
    assert field.range.low is not None and field.step
    if name:
        within = [each for each in limits if field.range(each) is None]
        assert all(takes(name, value) for value in (*within, field.neutral))
    row = BY_NAME.get(name)
    if row is not None and row.range is not None and (field.low, field.high) == (None, None):
        assert field.range == row.range


def test_the_chat_page_shows_the_defaults_that_apply() -> None:
    """Those that switch a strategy on show what it would be on with."""
    making = {"num_beams", "num_beam_groups", "diversity_penalty", "penalty_alpha"}
    for field in FIELDS:
        row = BY_NAME.get(field.name) if field.parameter is None else None
        if row is not None and row.default is not None and field.kind in ("slider", "integer"):
            assert field.neutral == row.default or field.name in making, field.name


def test_types_of_the_http_fields() -> None:
    """The types are as narrow as JSON allows."""
    hints = {**RequestFields.__annotations__, **GenerationFields.__annotations__}
    narrower = {
        "json_schema",
        "early_stopping",
        "num_beams",
        "n",
        "dola_layers",
        "num_assistant_tokens_schedule",
    }
    for each in PARAMETERS:
        if each.name in hints and each.name not in narrower and each.type != "Any":
            assert hints[each.name].removesuffix(" | None") == JSON_TYPES[each.type], each.name


def test_servers_refuse_what_is_local_and_nothing_else() -> None:
    assert {each.name for each in PARAMETERS if each.is_local and not each.elsewhere} == REFUSED
    assert not REFUSED & RequestFields.model_fields.keys()
