"""Values of a ``config.json`` come out checked, under the family's spellings and defaults."""

from __future__ import annotations

import pytest

from asyncgen.errors import ModelLoadError, UnsupportedModelError
from asyncgen.models.family.values import ConfigValues, bad, number, present


def test_spellings_and_defaults_are_the_familys() -> None:
    values = ConfigValues({"model_type": "gpt2", "n_embd": 48, "n_head": 4, "n_inner": None})
    assert values.count("hidden_size") == 48
    assert values.kv_heads(4) == 4
    assert values.width(48) == 192
    assert values.num_layers() == 12
    assert values.dtype() is None
    with pytest.raises(ModelLoadError, match="`n_embd` is 0"):
        ConfigValues({"model_type": "gpt2", "n_embd": 0}).count("hidden_size")


@pytest.mark.parametrize("raw", [{}, {"model_type": "other"}, {"model_type": 3}])
def test_an_unknown_type_lists_the_known_ones(raw: dict[str, object]) -> None:
    with pytest.raises(UnsupportedModelError, match="supported are gpt2, llama"):
        ConfigValues(raw)


def test_windows_follow_the_family() -> None:
    mistral = ConfigValues({"model_type": "mistral", "sliding_window": 8})
    assert mistral.windows(2) == (8, ("sliding_attention",) * 2)
    off = ConfigValues({"model_type": "mistral", "sliding_window": None})
    assert off.windows(2) == (None, ("full_attention",) * 2)


def test_plain_values() -> None:
    source = {"a": 1, "b": None, "c": "x"}
    assert present(source) == {"a": 1, "c": "x"}
    assert (number(source, "a", 2.0), number(source, "b", 2.0)) == (1.0, 2.0)
    with pytest.raises(ModelLoadError, match="`c` is 'x': must be a finite number"):
        number(source, "c", 0.0)
    assert len(str(bad("key", "y" * 500, "short"))) < 200
