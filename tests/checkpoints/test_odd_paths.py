"""Paths of a caller that are none, and a cache of the hub that a stranger has made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import asyncgen
from asyncgen.checkpoints.hub import check_source, resolve, resolve_code
from asyncgen.checkpoints.stored_files import SAVING
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.generation.config import GenerationConfig
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

DEMO = Path(asyncgen.__file__).parent / "demo"
COMMIT = "a" * 40

SAVES: dict[str, Callable[[Any], object]] = {
    "tokenizer": lambda place: asyncgen.load_tokenizer("demo").save_pretrained(place),
    "defaults": lambda place: GenerationConfig().save_pretrained(place),
    "packing": lambda place: asyncgen.quantize_checkpoint("demo", place, progress=False),
}
NO_PATHS = {
    "nothing": "",
    "a NUL": "a\0b",
    "half a letter": "a\ud800b",
    "a home of nobody": "~nobody-of-that-name/it",
    "bytes": b"it",
    "a number": 3,
}


@for_each("kind", NO_PATHS)
@for_each("save", SAVES)
def test_a_save_to_no_path_writes_nothing(
    kind: str, save: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.chdir(tmp_path)
        with pytest.raises(InvalidRequestError, match=r"` is .*: the path of a folder"):
            SAVES[save](NO_PATHS[kind])
    assert os.listdir(tmp_path) == []


@for_each("save", SAVES)
def test_a_save_to_what_is_no_folder(
    save: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path_factory.mktemp("folder")
    (base / "file").write_text("mine")
    os.mkfifo(base / "fifo")
    (base / "link").symlink_to(base / "gone")
    for name, said in (("file", "a file"), ("fifo", "a file"), ("link", "a link to nothing")):
        with pytest.raises(InvalidRequestError, match=f"{name}': {said}; pass a folder"):
            SAVES[save](base / name)
    with pytest.raises(OSError, match="too long"):
        SAVES[save](base / ("n" * 300))
    assert sorted(os.listdir(base)) == ["fifo", "file", "link"]
    with monkeypatch.context() as patched:
        patched.setenv("HOME", str(base))
        SAVES[save]("~/it")
    assert list((base / "it").iterdir())


def test_a_mark_of_a_save_that_is_no_file(tmp_path: Path) -> None:
    """A stranger's folder; the save could not end, and the folder would count as half saved."""
    (tmp_path / SAVING).mkdir()
    with pytest.raises(InvalidRequestError, match=r"\.saving in it is no file.*remove it first"):
        SAVES["tokenizer"](tmp_path)
    assert os.listdir(tmp_path) == [SAVING]


@for_each("source", ["", "./" + "n" * 300, "a/" * 3000, "~nobody-of-that-name/it", "a\0b"])
def test_a_source_that_is_no_path(source: str) -> None:
    for read in (check_source, resolve):
        with pytest.raises(ModelLoadError, match="there is no folder"):
            read(source)
    with pytest.raises(InvalidRequestError, match="subfolder.*there is no such folder"):
        resolve("demo", subfolder=source or "no")


def cached(cache: Path) -> Path:
    """Write the model of a repository as the hub library keeps it; return its folder."""
    repository = cache / "models--owner--model"
    folder = repository / "snapshots" / COMMIT
    for each in (folder, repository / "blobs", repository / "refs"):
        each.mkdir(parents=True)
    (repository / "refs/main").write_text(COMMIT)
    for number, file in enumerate(each for each in DEMO.iterdir() if each.is_file()):
        shutil.copy(file, repository / "blobs" / f"{number:064}")
        (folder / file.name).symlink_to(f"../../blobs/{number:064}")
    return repository


def name_another(repository: Path, other: Path) -> None:
    (repository / "refs/main").write_text(f"../../../{other.name}")


def name_a_place(repository: Path, other: Path) -> None:
    (repository / "refs/main").write_text(str(other))


def link_the_commit(repository: Path, other: Path) -> None:
    shutil.rmtree(repository / "snapshots" / COMMIT)
    (repository / "snapshots" / COMMIT).symlink_to(other)


def link_all(repository: Path, other: Path) -> None:
    shutil.rmtree(repository / "snapshots")
    shutil.copytree(other, other.with_name("all") / COMMIT)
    (repository / "snapshots").symlink_to(other.with_name("all"))


PLANTED = (name_another, name_a_place, link_the_commit, link_all)


@pytest.mark.parametrize("plant", PLANTED)
def test_a_cache_that_leads_out_of_a_repository(
    plant: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    other = shutil.copytree(DEMO, tmp_path / "other")
    plant(cached(tmp_path / "cache"), other)
    given: dict[str, Any] = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    with pytest.raises(ModelLoadError, match="leads to .* outside of the repository; pass follow_"):
        resolve("owner/model", **given)
    assert (resolve("owner/model", follow_links=True, **given) / "config.json").is_file()


def test_a_name_in_a_cache_that_waits_for_ever(tmp_path: Path) -> None:
    repository = cached(tmp_path)
    (repository / "refs/main").unlink()
    os.mkfifo(repository / "refs/main")
    for read in (resolve, lambda *args, **more: resolve_code(*args, patterns=["*"], **more)):
        with pytest.raises(ModelLoadError, match="refs/main in the cache of the hub is no file"):
            read("owner/model", cache_dir=tmp_path, local_files_only=True)


def test_a_cache_may_be_moved_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As to another drive, with a link in its old place."""
    cached(tmp_path / "drive")
    (tmp_path / "cache").symlink_to(tmp_path / "drive")
    (tmp_path / "part").mkdir()
    (tmp_path / "part/models--owner--model").symlink_to(tmp_path / "drive/models--owner--model")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for cache in (tmp_path / "drive", tmp_path / "cache", tmp_path / "part", "~/part", "cache"):
        for revision in (None, "main", COMMIT):
            asyncgen.load_tokenizer(
                "owner/model", cache_dir=cache, revision=revision, local_files_only=True
            )
