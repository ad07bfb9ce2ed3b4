"""Decoding methods from a folder and from the hub: found, checked, imported."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.errors import InvalidRequestError, MissingRequirementsError, ModelLoadError
from asyncgen.generation.custom_methods import (
    accepted_arguments,
    check_requirements,
    choose_method,
    extra_parameters,
    load_recipe,
    parameter_names,
)
from tests.doubles.hub import Repository, StandInHub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CODE = """
from .helper import ANSWER
import_count = 0

def generate(model, **kwargs):
    return (model, ANSWER, kwargs)
"""


def write(folder: Path, **files: str) -> Path:
    """A method in a folder; names are those of files below ``custom_generate``."""
    inner = folder / "custom_generate"
    inner.mkdir(parents=True, exist_ok=True)
    for name, text in ({"generate": CODE, "helper": "ANSWER = 42"} | files).items():
        suffix = ".txt" if name == "requirements" else ".py"
        (inner / f"{name}{suffix}").write_text(text)
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    files = {
        "custom_generate/generate.py": CODE.encode(),
        "custom_generate/helper.py": b"ANSWER = 7",
        "model.safetensors": b"weights",
    }
    old = {"generate.py": b"def generate(model): return 'older layout'"}
    with StandInHub({"owner/method": Repository(files), "owner/old": Repository(old)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


def test_a_folder_needs_no_trust(tmp_path: Path) -> None:
    function = load_recipe(write(tmp_path))
    assert function("model", left_padding=5) == ("model", 42, {"left_padding": 5})
    assert load_recipe(str(tmp_path))("model") == ("model", 42, {})


def test_a_folder_that_is_not_trusted_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, generate="raise AssertionError")
    with pytest.raises(InvalidRequestError, match="forbids to run the code") as caught:
        load_recipe(tmp_path, trust_remote_code=False)
    assert caught.value.parameter == "trust_remote_code"


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    first = load_recipe(write(tmp_path))
    second = load_recipe(write(tmp_path, helper="ANSWER = 4300"))
    assert first("m")[1] == 42
    assert second("m")[1] == 4300


@pytest.mark.parametrize("trust", [None, False])
def test_the_hub_needs_trust(hub: StandInHub, trust: bool | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        load_recipe("owner/method", trust_remote_code=trust)
    assert caught.value.parameter == "trust_remote_code"
    assert not hub.requests


def test_a_repository_is_downloaded(hub: StandInHub, tmp_path: Path) -> None:
    options: dict[str, Any] = {"trust_remote_code": True, "cache_dir": tmp_path}
    assert load_recipe("owner/method", **options)("m")[1] == 7
    assert not any("safetensors" in path for path in hub.paths("GET"))
    assert load_recipe("owner/old", **options)("m") == "older layout"
    with pytest.raises(ModelLoadError, match="no repository of that name"):
        load_recipe("owner/missing", **options)


def test_a_folder_without_a_method(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"custom_generate/generate\.py"):
        load_recipe(tmp_path)
    with pytest.raises(ModelLoadError, match="no function `generate`"):
        load_recipe(write(tmp_path, generate="generate = 3"))
    with pytest.raises(InvalidRequestError, match="revision"):
        load_recipe(tmp_path, revision="main")


def test_error_in_a_custom_method_is_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        load_recipe(write(tmp_path, generate="1 / 0"))


def test_requirements_are_listed_as_documented(tmp_path: Path) -> None:
    text = """
        # what it needs
        foo
        bar==0.0.0
        torch>=99.0

        torch>=1  # there
        elsewhere>=3 ; python_version < "3"
        -r other.txt
    """
    folder = write(tmp_path, requirements=text, generate="raise AssertionError")
    with pytest.raises(MissingRequirementsError) as caught:
        load_recipe(folder)
    assert isinstance(caught.value, ImportError) and isinstance(caught.value, ValueError)
    assert str(caught.value).splitlines() == [
        f"Missing requirements for {folder}:",
        "foo (installed: None)",
        "bar==0.0.0 (installed: None)",
        f"torch>=99.0 (installed: {version('torch')})",
        "-r other.txt (installed: None)",
    ]


def test_requirements_that_are_met() -> None:
    check_requirements("x", "\ntorch\ntorch>=2.0,<99\n# foo\n")


def plain(model: Any, input_ids: Any, left_padding: int = 0) -> None:
    """A function without keywords of any name."""


def open_ended(model: Any, *args: Any, **kwargs: Any) -> None:
    """A function that takes everything."""


class Callable:
    def __call__(self, model: Any, draw: Any, own: int) -> None:
        """A method counts as well."""


def test_extra_parameters_are_those_generate_lacks() -> None:
    assert parameter_names(plain) == {"model", "input_ids", "left_padding"}
    assert extra_parameters(plain) == {"left_padding"}
    assert extra_parameters(open_ended) == frozenset()
    assert extra_parameters(Callable()) == {"own"}
    assert extra_parameters(partial(plain, left_padding=3)) == {"left_padding"}


def test_accepted_arguments_keeps_known_parameters() -> None:
    given = {"left_padding": 1, "use_cache": True}
    assert accepted_arguments(plain, given) == {"left_padding": 1}
    assert accepted_arguments(open_ended, given) == given
    assert accepted_arguments(print, given) is not None


def test_a_method_has_one_of_two_names() -> None:
    assert choose_method(None, None) is None
    assert choose_method(plain, None) is plain
    assert choose_method(None, "folder") == "folder"
    for both, name in (((plain, "folder"), "recipe"), ((3, None), "custom_generate")):
        with pytest.raises(InvalidRequestError) as caught:
            choose_method(*both)
        assert caught.value.parameter == name
