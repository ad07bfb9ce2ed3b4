"""Settings of quantised caches are checked; the caches themselves are refused in so many words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.quantized import (
    CacheConfig,
    HQQQuantizedCache,
    QuantizedCache,
    QuantizedCacheConfig,
    QuantoQuantizedCache,
    refuse_quantized,
)
from asyncgen.errors import InvalidRequestError, MissingRequirementsError
from tests.cache.old import expected
from tests.doubles.models import TableModel

if TYPE_CHECKING:
    from pathlib import Path


def test_settings_go_to_a_file_and_back(tmp_path: Path) -> None:
    config = QuantizedCacheConfig.from_dict({"nbits": 2}, residual_length=32, other=1)
    assert (config.backend, config.nbits, config.q_group_size, config.residual_length) == (
        "quanto",
        2,
        64,
        32,
    )
    assert config.update(nbits=4, unknown=2) == {"unknown": 2}
    config.validate()
    config.to_json_file(tmp_path / "cache.json")
    stored = json.loads((tmp_path / "cache.json").read_text())
    assert stored == config.to_dict() | {"compute_dtype": "float16"}
    assert stored["nbits"] == 4
    assert config.to_dict()["compute_dtype"] is torch.float16
    assert QuantizedCacheConfig.from_dict(stored) == config
    assert (config.cache_implementation, config.device) == ("quantized", "cpu")
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        QuantizedCacheConfig.from_dict({"device": torch.device("cpu")}).to_json_string()
    assert CacheConfig("static").to_dict() == {"cache_implementation": "static"}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"nbits": 5}, "nbits"),
        ({"axis_key": 2}, "axis_key"),
        ({"backend": "HQQ", "axis_value": None}, "axis_value"),
        ({"q_group_size": 0}, "q_group_size"),
        ({"residual_length": -1}, "residual_length"),
        ({"backend": "other"}, "backend"),
    ],
)
def test_settings_out_of_range(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        QuantizedCacheConfig(**fields).validate()


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        (QuantizedCache, "optimum-quanto"),
        (QuantoQuantizedCache, "quanto"),
        (HQQQuantizedCache, "hqq"),
    ],
)
@pytest.mark.parametrize("is_installed", [False, True])
def test_the_caches_say_why_there_are_none(
    kind: type[QuantizedCache], package: str, is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if is_installed else None)
    expected = InvalidRequestError if is_installed else MissingRequirementsError
    with pytest.raises(expected, match=package):
        kind(QuantizedCacheConfig())
    with pytest.raises(InvalidRequestError, match="nbits"):
        kind(QuantizedCacheConfig(nbits=7))
    with pytest.raises(expected, match="`cache_implementation`"):
        TableModel().generate(
            torch.tensor([[1]]), cache_implementation="quantized", max_new_tokens=1
        )


@pytest.mark.parametrize("case", expected()["settings"], ids=lambda case: str(case["settings"]))
def test_settings_are_refused_as_by_the_reference(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = QuantizedCacheConfig(**case["settings"])
    kinds = (QuantoQuantizedCache, HQQQuantizedCache)
    [kind] = [each for each in kinds if each.__name__ == case["cache"]]
    runs = ((config.validate, case["validate"]), (lambda: kind(config), case["making"]))
    refused = []
    for run, theirs in runs:
        if theirs is not None and theirs[0] == "ValueError":
            [named] = [name for name in config.to_dict() if f"`{name}`" in theirs[1]]
            refused.append(named)
            with pytest.raises(InvalidRequestError, match=f"`{named}`"):
                run()
        elif theirs is None:
            run()
        elif not refused:
            # Without the backend's package that release fails on a name.
            assert theirs[0] in ("NameError", "UnboundLocalError")
            with pytest.raises(MissingRequirementsError, match=f"`{config.backend}` backend"):
                run()


def test_settings_are_written_as_by_the_reference(tmp_path: Path) -> None:
    theirs = expected()["configs"]
    config = QuantizedCacheConfig.from_dict(
        {"nbits": 2, "compute_dtype": None}, residual_length=7, other=1
    )
    assert config.update(nbits=4, q_group_size=32, unknown=2) == theirs["left"]
    assert config.to_dict() == dict(config) == theirs["dict"]
    assert [list(item) for item in config] == theirs["items"]
    assert config.to_json_string() == theirs["string"]
    config.to_json_file(tmp_path / "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == theirs["file"]
    for name, wrong in (("unknown", {"nope": 1}), ("named", {"cache_implementation": "a"})):
        kind, text = theirs[name]
        assert kind == "TypeError"
        with pytest.raises(TypeError, match=text.partition(" got ")[2]):
            QuantizedCacheConfig.from_dict(wrong)
    assert CacheConfig("static").to_json_string() == theirs["plain"]
    replaced = CacheConfig.from_dict(
        {"cache_implementation": "static"}, cache_implementation="hybrid"
    )
    assert dict(replaced) == theirs["replaced"]


def test_an_unknown_backend() -> None:
    with pytest.raises(InvalidRequestError, match="backend"):
        refuse_quantized("other")
