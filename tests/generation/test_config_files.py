"""Where generation configurations come from and go to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from asyncgen.errors import ModelLoadError
from asyncgen.generation.config_files import dtype_to_name, fetch, to_plain, upload

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_comes_before_the_hub(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "x.json").write_text('{"a": 1}')
    assert fetch(str(tmp_path), "x.json", subfolder="deep") == {"a": 1}
    with pytest.raises(ModelLoadError, match="no file"):
        fetch(str(tmp_path), "x.json")


def test_the_bundled_model_has_one() -> None:
    assert "eos_token_id" in fetch("demo", "generation_config.json")


def test_a_model_id_goes_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    (tmp_path / "x.json").write_text(json.dumps({"top_k": 3}))

    def download(repo_id: str, name: str, **options: Any) -> str:
        asked.append({"repo_id": repo_id, "name": name, **options})
        return str(tmp_path / "x.json")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert fetch("owner/name", "g.json", subfolder="sub", revision="v1") == {"top_k": 3}
    assert asked == [
        {"repo_id": "owner/name", "name": "g.json", "subfolder": "sub", "revision": "v1"}
    ]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (LocalEntryNotFoundError("not cached"), "neither cached nor reachable"),
        (OSError("no route"), "no route"),
    ],
)
def test_a_failed_download_says_what_to_do(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(ModelLoadError, match=message) as caught:
        fetch("owner/name", "g.json")
    assert "'owner/name'" in str(caught.value)
    assert "local folder" in str(caught.value)
    assert caught.value.__cause__ is error


def test_no_folder_and_no_id() -> None:
    with pytest.raises(ModelLoadError, match="neither a folder nor a model id"):
        fetch("/no/such/folder", "g.json")


def test_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    class Hub:
        """Stands in for the hub's client."""

        def __init__(self, **options: Any) -> None:
            calls.append(("login", options))

        def create_repo(self, repo_id: str, **options: Any) -> Any:
            calls.append(("create", {"repo_id": repo_id, **options}))
            return type("Repository", (), {"repo_id": f"me/{repo_id}"})

        def upload_file(self, **options: Any) -> None:
            calls.append(("upload", options))

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    upload(tmp_path / "g.json", "name", token="secret", private=True, create_pr=True)
    assert calls[0] == ("login", {"token": "secret"})
    assert calls[1] == ("create", {"repo_id": "name", "private": True, "exist_ok": True})
    assert calls[2][1]["repo_id"] == "me/name"
    assert calls[2][1]["path_in_repo"] == "g.json"
    assert calls[2][1]["create_pr"] is True


def test_plain_values() -> None:
    assert to_plain({(1, 2): 0.5}) == [[[1, 2], 0.5]]
    assert to_plain({1: (2, {"a": torch.float16})}) == {"1": [2, {"a": "float16"}]}
    assert to_plain({}) == {}
    assert dtype_to_name({"a": {"b": torch.int8}, "c": 1}) == {"a": {"b": "int8"}, "c": 1}
