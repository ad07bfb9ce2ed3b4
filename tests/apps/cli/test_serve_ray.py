"""Settings that `asyncgen serve-ray` makes of its options and of a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.cli import serve_ray
from tests.apps.cli.doubles import run_cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of what would be served."""
    found: list[Any] = []
    monkeypatch.setattr(serve_ray, "require_installed", lambda *_, **__: None)
    monkeypatch.setattr(serve_ray, "_run", lambda settings, *_: found.append(settings))
    return found


def test_options_that_are_given_stand_above_a_file(served: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    engine = {"dtype": "bfloat16", "num_threads": 4}
    file.write_text(json.dumps({"model": "mine", "replicas": 4, "engine": engine}))
    assert run_cli("serve-ray", "--config", str(file)).exit_code == 0
    given = ("--model", "demo", "--replicas", "1", "--threads", "2")
    assert run_cli("serve-ray", "--config", str(file), *given).exit_code == 0
    assert run_cli("serve-ray").exit_code == 0
    assert [(one.model, one.replicas) for one in served] == [("mine", 4), ("demo", 1), ("demo", 2)]
    assert [dict(one.engine) for one in served] == [engine, {**engine, "num_threads": 2}, {}]


def test_a_public_address_needs_a_key(served: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"api_keys": ["k"]}))
    assert run_cli("serve-ray", "--host", "0.0.0.0").exit_code != 0
    assert run_cli("serve-ray", "--host", "0.0.0.0", "--config", str(file)).exit_code == 0
    assert [tuple(one.api_keys) for one in served] == [("k",)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"replica": 2}', "`replica` is no setting"),
        ("[1]", "a mapping"),
        ('{"replicas": 1.5}', "1.5"),
    ],
)
def test_errors_in_a_settings_file_are_named(
    served: list[Any], tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)
    result = run_cli("serve-ray", "--config", str(file))
    assert result.exit_code != 0 and says in result.stderr
    assert not served
