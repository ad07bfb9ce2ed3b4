from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen import STREAM_PARAMETERS, StreamParams
from asyncgen_apps.cli.settings import (
    SETTINGS,
    Setting,
    SettingError,
    Settings,
    Value,
    find_setting,
)
from tests.cases import for_each


def test_every_setting_is_a_parameter_of_stream() -> None:
    for setting in SETTINGS:
        assert setting.stream_name in StreamParams.__annotations__


@for_each(
    ("name", "text", "value"),
    [
        ("temperature", "0.7", 0.7),
        ("temperature", " 1 ", 1.0),
        ("temperature", "0", 0.0),
        ("top_k", "0", 0),
        ("seed", "9223372036854775807", 2**63 - 1),
        ("sample", "off", False),
        ("sample", "Yes", True),
        ("stop", "END", ["END"]),
        ("stop", '"END" "\\n\\n"', ["END", "\n\n"]),
        ("stop", '"a", "b"', ["a", "b"]),
        ("stop", 'say "x"', ['say "x"']),
    ],
)
def test_values_are_read_as_typed(name: str, text: str, value: Value) -> None:
    parsed = find_setting(name).parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@for_each(
    ("name", "text"),
    [
        ("temperature", "-1"),
        ("temperature", "nan"),
        ("temperature", "inf"),
        ("temperature", "warm"),
        ("top_p", "-0.1"),
        ("top_p", "1.01"),
        ("top_k", "1.5"),
        ("max_new_tokens", "0"),
        ("typical_p", "0"),
        ("seed", "18446744073709551616"),
        ("sample", "maybe"),
        ("stop", ""),
        ("stop", '"open'),
        ("stop", '""'),
    ],
)
def test_wrong_values_are_refused_with_the_allowed_ones(name: str, text: str) -> None:
    with pytest.raises(SettingError) as caught:
        find_setting(name).parse(text)
    assert "\n" not in str(caught.value)
    setting = find_setting(name)
    if setting.kind in (int, float):
        rule = STREAM_PARAMETERS[setting.stream_name].rule
        assert rule is not None and str(caught.value).endswith(f": {rule(text)}")


def test_defaults_are_those_of_the_library() -> None:
    for setting in SETTINGS:
        if setting.default is not None:
            assert setting.default == STREAM_PARAMETERS[setting.stream_name].default


def test_a_temperature_of_0_is_greedy_and_no_sampling() -> None:
    settings = Settings()
    settings.set("temperature", 0)
    settings.set("top_p", 0.9)
    assert settings.params() == {"temperature": 0.0, "top_p": 0.9}
    settings.set("sample", True)
    with pytest.raises(SettingError, match="--sample"):
        settings.params()
    settings = Settings({"temperature": 0.0, "sample": False})
    assert settings.params() == {"temperature": 0.0, "do_sample": False}


@for_each("name", ["top-p", "top_p", "--top-p", "TOP_P", "do_sample"])
def test_a_name_is_known_in_every_spelling(name: str) -> None:
    assert find_setting(name).name in ("top_p", "sample")


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(SettingError, match="did you mean `temperature`"):
        find_setting("temperatur")


def test_settings_become_parameters_and_nothing_else() -> None:
    settings = Settings()
    settings.set("sample", False)
    settings.set("no-repeat-ngram-size", 5)
    assert settings.params() == {"do_sample": False, "no_repeat_ngram_size": 5}
    settings.set("no_repeat_ngram_size", None)
    assert settings.params() == {"do_sample": False}


def test_a_setting_of_sampling_without_sampling_is_refused_in_the_users_words() -> None:
    settings = Settings()
    settings.set("sample", False)
    settings.set("top_p", 0.9)
    with pytest.raises(SettingError, match="leave out `top_p`, or `sample off`"):
        settings.params()


anything = st.one_of(
    st.floats(),
    st.integers(),
    st.just(10**400),
    st.booleans(),
    st.text(),
    st.none(),
    st.lists(st.text()),
    st.lists(st.integers()),
)


@given(st.sampled_from(SETTINGS), anything)
def test_accepted_values_have_the_right_type_and_range(setting: Setting, value: object) -> None:
    try:
        checked = setting.check(value)
    except SettingError:
        return
    assert type(checked) is setting.kind
    if isinstance(checked, int | float):
        if setting.kind is not bool:
            rule = STREAM_PARAMETERS[setting.stream_name].rule
            assert rule is not None and rule(checked) is None
    # What was accepted survives a saved conversation.
    assert setting.check(json.loads(json.dumps(checked))) == checked
