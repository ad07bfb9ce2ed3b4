"""Tests of `asyncgen.checkpoints.hub`, against a stand-in hub on the loopback interface."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from asyncgen.checkpoints.hub import read_json, read_text, resolve
from asyncgen.errors import InvalidRequestError, ModelLoadError
from tests.doubles.hub import Repository, StandInHub

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": bytes(range(256)) * 300,
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "README.md": b"# a model",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"the same again",
    "onnx/config.json": b"{}",
    "custom_generate/generate.py": b"raise SystemExit",
}
WANTED = {
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    repositories = {
        "owner/model": Repository(FILES, {"main": "a" * 40, "older": "b" * 40}),
        "owner/private": Repository(FILES, token="secret"),
        "owner/gated": Repository(FILES, gated=True),
    }
    with StandInHub(repositories) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


def names_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_download_calls_progress_and_prints_nothing(
    hub: StandInHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, int, int]] = []
    resolve("owner/model", cache_dir=tmp_path, progress=lambda *each: told.append(each))
    size = sum(len(FILES[name]) for name in WANTED)
    assert {what for what, *_ in told} == {"downloading"}
    assert told[-1] == ("downloading", size, size)
    resolve("owner/model", cache_dir=tmp_path / "again", progress=False)
    assert capfd.readouterr() == ("", "")


def test_demo_is_bundled() -> None:
    folder = resolve("demo")
    assert folder.name == "demo" and folder.parent.name == "asyncgen"


def test_folder_is_itself(tmp_path: Path) -> None:
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path)) == tmp_path


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/model") == tmp_path / "model"


@pytest.mark.parametrize("source", ["/no/such/folder", "./nothing", "a/b/c", "..", "c:\\models"])
def test_no_such_folder(
    source: str, hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if source == "..":
        assert resolve(source).is_dir()
        return
    with pytest.raises(ModelLoadError, match="there is no folder"):
        resolve(source)
    assert hub.requests == []


def test_a_path_object_is_never_a_repository(hub: StandInHub) -> None:
    with pytest.raises(ModelLoadError, match="there is no folder 'owner/model'"):
        resolve(Path("owner/model"))
    assert hub.requests == []


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelLoadError, match="is a file; give the folder"):
        resolve(file)


def test_revision_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="`revision` is 'main'"):
        resolve(tmp_path, revision="main")


def test_download_takes_safetensors_and_small_files_only(hub: StandInHub, tmp_path: Path) -> None:
    folder = resolve("owner/model", cache_dir=tmp_path)
    assert names_in(folder) == WANTED
    for name in WANTED:
        assert (folder / name).read_bytes() == FILES[name]
    assert not any("pytorch_model" in path or ".py" in path for path in hub.paths("GET"))


def test_tokenizer_alone(hub: StandInHub, tmp_path: Path) -> None:
    folder = resolve("owner/model", weights=False, cache_dir=tmp_path)
    assert names_in(folder) == WANTED - {"model.safetensors"}


def test_second_time_downloads_nothing(hub: StandInHub, tmp_path: Path) -> None:
    first = resolve("owner/model", cache_dir=tmp_path)
    seen = len([path for path in hub.paths("GET") if "/resolve/" in path])
    assert resolve("owner/model", cache_dir=tmp_path) == first
    assert len([path for path in hub.paths("GET") if "/resolve/" in path]) == seen
    count = len(hub.requests)
    assert resolve("owner/model", cache_dir=tmp_path, local_files_only=True) == first
    assert len(hub.requests) == count


def test_revision_is_asked_for(hub: StandInHub, tmp_path: Path) -> None:
    folder = resolve("owner/model", revision="older", cache_dir=tmp_path)
    assert folder.name == "b" * 40
    assert any(path.endswith("/revision/older") for path in hub.paths("GET"))
    with pytest.raises(ModelLoadError, match="'owner/model' has no revision 'v9'; check"):
        resolve("owner/model", revision="v9", cache_dir=tmp_path)


def test_token_is_sent(hub: StandInHub, tmp_path: Path) -> None:
    folder = resolve("owner/private", token="secret", cache_dir=tmp_path)
    assert names_in(folder) == WANTED
    assert {token for _, _, token in hub.requests} == {"secret"}


@pytest.mark.parametrize("token", [None, "wrong"])
def test_private_without_the_token(hub: StandInHub, tmp_path: Path, token: str | None) -> None:
    with pytest.raises(ModelLoadError, match="pass `token=` if it is private"):
        resolve("owner/private", token=token, cache_dir=tmp_path)


def test_gated(hub: StandInHub, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="is gated; accept its terms"):
        resolve("owner/gated", token="any", cache_dir=tmp_path)


@pytest.mark.parametrize("source", ["owner/other", "nothing"])
def test_no_such_repository(hub: StandInHub, tmp_path: Path, source: str) -> None:
    with pytest.raises(ModelLoadError, match=f"no folder '{source}', and the hub shows no"):
        resolve(source, cache_dir=tmp_path)


def test_not_in_the_cache(hub: StandInHub, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="leave `local_files_only` out"):
        resolve("owner/model", cache_dir=tmp_path, local_files_only=True)
    assert hub.requests == []


def test_hub_fails(hub: StandInHub, tmp_path: Path) -> None:
    hub.broken = True
    with pytest.raises(ModelLoadError, match="the hub answered 500 .*; try again later"):
        resolve("owner/model", cache_dir=tmp_path)


def test_interrupted_download_can_be_repeated(
    hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hub library waits a second before each of its own attempts to resume.
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    hub.cut = True
    with pytest.raises(ModelLoadError, match="downloading 'owner/model' failed .*try again"):
        resolve("owner/model", cache_dir=tmp_path)
    hub.cut = False
    folder = resolve("owner/model", cache_dir=tmp_path)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_hub_cannot_be_reached(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ModelLoadError, match="the hub cannot be reached .*path of a folder"):
        resolve("owner/model", cache_dir=tmp_path, endpoint=endpoint)


def test_unreachable_hub_does_not_matter_for_what_is_cached(
    hub: StandInHub, tmp_path: Path
) -> None:
    folder = resolve("owner/model", cache_dir=tmp_path)
    assert resolve("owner/model", cache_dir=tmp_path, endpoint="http://127.0.0.1:9") == folder


def test_git_lfs_pointer_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelLoadError, match="git lfs pull"):
        read_json(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "not valid JSON"), (b"[1]", "holds a list"), (b"\xff\xfe", "cannot be read")],
)
def test_json_that_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ModelLoadError, match=f"config.json.*{message}"):
        read_json(file)


def test_text_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_text(tmp_path / "nothing.jinja")
