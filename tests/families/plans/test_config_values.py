"""Values of a ``config.json`` come out checked, under the family's spellings and defaults."""

from __future__ import annotations

import pytest

from asyncgen.errors import ModelLoadError
from asyncgen.families.plans.config_values import ConfigValues, bad, number, present


def read(raw: dict[str, object]) -> ConfigValues:
    return ConfigValues(
        {"model_type": "tried", **raw},
        defaults={"hidden_size": 64, "scale": 2.0, "window": 4},
        spellings={"hidden_size": "n_embd"},
        unread=("head_dim",),
    )


def test_spellings_and_defaults_are_the_familys() -> None:
    values = read({"n_embd": 48, "head_dim": 7})
    assert values.count("hidden_size") == 48
    assert read({"hidden_size": 32}).count("hidden_size") == 32
    assert read({}).count("hidden_size") == 64
    assert values.kv_heads(4) == 4
    assert values.head_dim(48, 4, is_rotary=True) == 12
    assert values.dtype() is None
    assert values.read >= {"hidden_size", "num_key_value_heads", "head_dim"}
    with pytest.raises(ModelLoadError, match="`n_embd` is 0"):
        read({"n_embd": 0}).count("hidden_size")


def test_null_is_off_only_where_it_is_stated() -> None:
    assert read({"window": None}).count_or_none("window") is None
    assert read({}).count_or_none("window") == 4
    assert read({"scale": None}).positive_or_none("scale") is None
    with pytest.raises(ModelLoadError, match="`scale` is -1.0: must be above 0"):
        read({"scale": -1.0}).positive_or_none("scale")


def test_require_refuses_unsupported_values_by_name() -> None:
    read({"clip": None}).require("clip", False)
    read({}).require("clip", False)
    with pytest.raises(ModelLoadError, match="`clip` is 3: supported is False"):
        read({"clip": 3}).require("clip", False)


def test_plain_values() -> None:
    source = {"a": 1, "b": None, "c": "x"}
    assert present(source) == {"a": 1, "c": "x"}
    assert (number(source, "a", 2.0), number(source, "b", 2.0)) == (1.0, 2.0)
    with pytest.raises(ModelLoadError, match="`c` is 'x': must be a finite number"):
        number(source, "c", 0.0)
    assert len(str(bad("key", "y" * 500, "short"))) < 200
