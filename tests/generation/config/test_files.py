"""Test reading and writing generation configurations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from asyncgen.errors import ModelLoadError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.files import dtype_to_name, fetch, to_plain
from tests.doubles.hub import Repository, StandInHub

if TYPE_CHECKING:
    from collections.abc import Iterator
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
def test_failed_download_error_names_the_remedy(
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


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """A hub on the loopback interface, where one repository exists."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with StandInHub({"me/there": Repository({"a.txt": b"a"}, token="secret")}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


def test_a_config_goes_to_a_new_repository(hub: StandInHub, tmp_path: Path) -> None:
    config = GenerationConfig(top_k=3, do_sample=True, watermarking_config={"bias": 1.0})
    config.save_pretrained(
        tmp_path / "mine",
        push_to_hub=True,
        repo_id="me/new",
        token="secret",
        private=True,
        commit_message="first",
    )
    repository = hub.repositories["me/new"]
    assert repository.private
    assert repository.files == {
        "generation_config.json": (tmp_path / "mine" / "generation_config.json").read_bytes()
    }
    assert [(commit["summary"], commit["branch"]) for commit in repository.commits] == [
        ("first", "main")
    ]
    assert {token for _, _, token in hub.requests} == {"secret"}


def test_push_to_hub_adds_to_a_repository(hub: StandInHub, tmp_path: Path) -> None:
    config = GenerationConfig(max_new_tokens=7)
    url = config.push_to_hub("me/there", token="secret", commit_description="why", create_pr=True)
    repository = hub.repositories["me/there"]
    assert url.startswith(f"{hub.endpoint}/me/there/commit/")
    assert repository.files.keys() == {"a.txt", "generation_config.json"}
    (commit,) = repository.commits
    assert commit["summary"] == "Upload GenerationConfig"
    assert commit["description"] == "why"
    assert "create_pr=1" in commit["query"]
    (tmp_path / "g.json").write_bytes(repository.files["generation_config.json"])
    assert GenerationConfig.from_pretrained(tmp_path, "g.json") == config


def test_plain_values() -> None:
    assert to_plain({(1, 2): 0.5}) == [[[1, 2], 0.5]]
    assert to_plain({1: (2, {"a": torch.float16})}) == {"1": [2, {"a": "float16"}]}
    assert to_plain({}) == {}
    assert dtype_to_name({"a": {"b": torch.int8}, "c": 1}) == {"a": {"b": "int8"}, "c": 1}
