"""A save into a folder that a stranger has made: whole or not there, and nowhere else."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import torch

import asyncgen
from asyncgen.checkpoints.saved_folder import SavedFolder, plain_name
from asyncgen.checkpoints.stored_files import SAVING
from asyncgen.errors import InvalidRequestError, ModelLoadError
from tests.cases import for_each
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.tokenizers import save_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
PATHS = (
    "../../pwned",
    "/etc/pwned",
    "a/b",
    "..",
    ".",
    "",
    ".hidden",
    "a\0b",
    "a\\b",
    "..\\b",
    "C:b",
    "a" * 300,
    "ä" * 150,
    " a",
    "a\nb",
    "a?b",
    "\ud800",
)
"""Names that are no plain names of files."""


def entries(folder: Path) -> dict[str, bytes | str]:
    """All entries below a folder, with their contents; of a link where it leads."""
    return {
        str(file.relative_to(folder)): os.readlink(file) if file.is_symlink() else file.read_bytes()
        for file in folder.rglob("*")
        if file.is_symlink() or not file.is_dir()
    }


@for_each("name", PATHS)
def test_names_are_plain(name: str, tmp_path: Path) -> None:
    refused(lambda: plain_name("chat_template", name), "chat_template", "plain name")
    if name == "a/b":  # a folder inside has a file of that name
        added(tmp_path / "inside", name)
        assert entries(tmp_path / "inside") == {"a/b": b"x"}
    else:
        refused(lambda: added(tmp_path / "none", name), "save_directory", "plain name")
        assert not entries(tmp_path / "none")


def added(folder: Path, name: str) -> object:
    with SavedFolder(folder) as saved:
        saved.add(name, "x")
    return folder


def refused(act: Callable[[], object], *words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        act()
    assert all(word in str(caught.value) for word in words), caught.value


@for_each(
    "one, other", [("tool", "Tool"), ("\u00e9", "e\u0301"), ("k", "\u212a"), ("fi", "\ufb01")]
)
def test_names_that_are_one_file_elsewhere(one: str, other: str, tmp_path: Path) -> None:
    folder = tmp_path / one.encode().hex()
    with (
        pytest.raises(InvalidRequestError, match=f"another name than {one!r}"),
        SavedFolder(folder) as saved,
    ):
        saved.add(one, "1")
        saved.add(other, "2")
    assert os.listdir(folder) == []
    with SavedFolder(folder) as saved:
        saved.add(f"more/{other}", "1")
        saved.add(one, "2")
    with SavedFolder(folder) as saved:
        saved.add(f"more/{one}", "3")
        saved.drop(f"more/{other}")  # which is the file that was added, on some systems
    assert sorted(os.listdir(folder / "more")) == sorted([one, other])


def test_templates_whose_names_are_one_file_elsewhere(tmp_path: Path) -> None:
    tokenizer = asyncgen.load_tokenizer("demo")
    tokenizer.chat_template = {"default": "a", "tool": "b", "Tool": "c"}
    with pytest.raises(InvalidRequestError, match=r"'Tool.jinja': another name than 'tool.jinja'"):
        tokenizer.save_pretrained(tmp_path)
    assert os.listdir(tmp_path) in ([], ["additional_chat_templates"])


def test_lone_surrogates_of_a_stranger_are_saved_or_refused(tmp_path: Path) -> None:
    """JSON may spell them, and no text has them."""
    folder = shutil.copytree(Path(asyncgen.__file__).parent / "demo", tmp_path / "it")
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    half = {"tokenizer_class": "\ud800", "extra_special_tokens": {"\ud801": "<|end|>"}}
    file.write_text(json.dumps({**settings, **half}))
    (folder / "config.json").write_text(
        json.dumps({**json.loads((folder / "config.json").read_text()), "note": "\ud802"})
    )
    model = asyncgen.load_model(folder, device="cpu", progress=False)
    model.save_pretrained(tmp_path / "saved")
    tokenizer = asyncgen.load_tokenizer(folder)
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved/tokenizer_config.json").read_text(encoding="utf-8"))
    assert saved["tokenizer_class"] == "\ud800"
    assert asyncgen.load_tokenizer(tmp_path / "saved").encode("Hello") == tokenizer.encode("Hello")
    tokenizer.chat_template = "{{ '\ud800' }}"
    with pytest.raises(InvalidRequestError, match=r"'chat_template.jinja': Unicode text: a lone"):
        tokenizer.save_pretrained(tmp_path / "saved")
    assert not list((tmp_path / "saved").glob(".*"))


def test_an_error_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(ZeroDivisionError), SavedFolder(tmp_path) as saved:
        saved.add("a", "new")
        saved.add("more/b", "new")
        saved.drop("a")
        raise ZeroDivisionError
    assert entries(tmp_path) == {"a": b"old"}


def test_what_was_saved_before_is_dropped(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("old")
    (tmp_path / "d").symlink_to("c")
    with SavedFolder(tmp_path) as saved:
        assert sorted(saved.names()) == ["a", "b", "c", "d"]
        assert saved.names("none") == []
        for name in ("a", "b", "d", "none"):
            saved.drop(name)
        saved.add("a", "new")
    assert entries(tmp_path) == {"a": b"new", "c": b"old", "d": "c"}


def test_parts_that_were_left_are_removed(tmp_path: Path) -> None:
    kept = (".a.part", ".a.0123456789abcdef.part.txt", "a.0123456789abcdef.part")
    for name in (*kept, ".a.0123456789abcdef.part"):
        (tmp_path / name).touch()
    (tmp_path / ".b.0123456789abcdef.part").symlink_to(".a.part")
    (tmp_path / SAVING).touch()
    added(tmp_path, "a")
    left = {*entries(tmp_path)}
    assert left == {*kept, "a", ".b.0123456789abcdef.part"}


@pytest.fixture
def model(tmp_path: Path) -> Any:
    """A model of a folder."""
    save_checkpoint(tmp_path / "source")
    save_tokenizer(tmp_path / "source", "byte_level")
    return asyncgen.load_model(tmp_path / "source", device="cpu", progress=False)


@for_each(
    "name",
    ["config.json", "model.safetensors", "model.safetensors.index.json", "generation_config.json"],
)
@for_each("target", ["../private", "/dev/null", "config.json.2", "nowhere"])
def test_a_model_is_not_saved_through_links(
    model: Any, tmp_path: Path, name: str, target: str
) -> None:
    folder = tmp_path / f"{name} {target.replace('/', ' ')}"
    folder.mkdir()
    (tmp_path / "private").write_text("mine")
    (folder / name).symlink_to(target)
    before = entries(folder)
    size = 10**9 if name == "model.safetensors" else 10_000
    refused(lambda: model.save_pretrained(folder, max_shard_size=size), name, "link", "remove it")
    assert entries(folder) == before
    assert (tmp_path / "private").read_text() == "mine"


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights")
def test_a_tokenizer_is_not_saved_through_links(model: Any, tmp_path: Path) -> None:
    tokenizer = asyncgen.load_tokenizer(tmp_path / "source")
    other = tmp_path / "other"
    for name in ("tokenizer.json", "chat_template.jinja", "additional_chat_templates"):
        folder = tmp_path / f"links {name}"
        folder.mkdir()
        other.mkdir(exist_ok=True)
        (folder / name).symlink_to(other)
        tokenizer.chat_template = {"default": "a", "tool": "b"}
        refused(partial(tokenizer.save_pretrained, folder), name, "link")
        assert entries(folder) == {name: str(other)}
        assert entries(other) == {}
    # Names that could be guessed of temporary files lead nowhere either.
    folder = tmp_path / "parts"
    folder.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "config.json", "model.safetensors"):
        (folder / f".{name}.part").symlink_to(other / "x")
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    assert entries(other) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights")
@for_each("name", ["a", "more/a"])
@for_each("swapped", ["", "more"])
@for_each("when", ["before", "amid"])
def test_a_folder_that_is_swapped_amid_a_save_leads_nowhere(
    tmp_path: Path, name: str, swapped: str, when: str
) -> None:
    """Another process puts a link in the place of a folder that is open."""
    place = tmp_path / f"{name.replace('/', ' ')} {swapped} {when}"
    (place / "it/more").mkdir(parents=True)
    (place / "other/more").mkdir(parents=True)

    def swap() -> None:
        (place / "it" / swapped).rename(place / "moved")
        (place / "it" / swapped).symlink_to(place / "other" / swapped)

    with suppress(InvalidRequestError), SavedFolder(place / "it") as saved:
        if when == "before":
            swap()
        saved.add(name, "x")
        if when == "amid":
            swap()
    assert entries(place / "other") == {}


@for_each("name", PATHS)
def test_names_of_templates_are_no_paths(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "it"
    folder.mkdir(exist_ok=True)
    save_tokenizer(folder, "byte_level")
    tokenizer = asyncgen.load_tokenizer(folder)
    tokenizer.chat_template = {"default": "a", name: "b"}
    before = entries(tmp_path)
    refused(lambda: tokenizer.save_pretrained(folder), "chat_template", "plain name")
    refused(lambda: tokenizer.save_pretrained(folder, filename_prefix=name or "/"), "filename_pre")
    assert entries(tmp_path) == before


def test_names_of_templates_in_files_are_no_paths(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level")
    settings = '{"chat_template": [{"name": "../../../../pwned", "template": "x"}]}'
    (tmp_path / "tokenizer_config.json").write_text(settings)
    with pytest.raises(ModelLoadError, match="plain name"):
        asyncgen.load_tokenizer(tmp_path)


def test_saves_into_one_folder_wait_for_each_other(model: Any, tmp_path: Path) -> None:
    target = tmp_path / "target"
    other = changed(tmp_path / "source", tmp_path / "new")
    savers = (
        partial(model.save_pretrained, target, max_shard_size=9_000),
        partial(other.save_pretrained, target),
        partial(asyncgen.load_tokenizer(tmp_path / "source").save_pretrained, target),
    )
    known = [weights(tmp_path / name) for name in ("source", "new")]
    with ThreadPoolExecutor(len(savers)) as threads:
        for _ in range(8):
            for ended in [threads.submit(save) for save in savers]:
                ended.result(timeout=60)
            found = weights(target)
            assert any(same(found, one) for one in known)
            asyncgen.load_tokenizer(target)


def test_a_save_inside_of_a_save_does_not_wait(tmp_path: Path) -> None:
    with SavedFolder(tmp_path) as saved:
        refused(lambda: added(tmp_path / "." / "", "a"), "save_directory", "this thread")
        added(tmp_path / "inside", "a")
        saved.add("b", "x")
    added(tmp_path, "c")
    assert {*entries(tmp_path)} == {"b", "c", "inside/a"}


def test_a_fork_does_not_keep_others_waiting(tmp_path: Path) -> None:
    """A process that was begun amid a save has the folder open, too."""
    with SavedFolder(tmp_path) as saved:
        kept = os.dup(saved._folders[""]._number or 0)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(added, tmp_path, "a").result(timeout=10)
    os.close(kept)


@for_each("missing", ["locks", "descriptors"])
def test_a_save_needs_no_locks(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network drives have none, nor has Windows, which has no open folders either."""
    if missing == "locks":
        monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.EBADF, "no locks")))
    else:
        monkeypatch.setattr("asyncgen.checkpoints.saved_folder._HAS_DESCRIPTORS", False)
    for name in ("a", "b"):
        added(tmp_path, name)
    assert {*entries(tmp_path)} == {"a", "b"}


IN_TURN = """
import sys, torch, asyncgen
torch.set_num_threads(1)
model = asyncgen.load_model(sys.argv[2], device="cpu", progress=False)
for line in sys.stdin:
    model.save_pretrained(sys.argv[1], max_shard_size=int(line))
    print("saved", flush=True)
"""


@pytest.mark.gate
def test_two_processes_save_one_folder(tmp_path: Path) -> None:
    """Both at once, 30 times: the folder is a whole model, the one that came last."""
    save_checkpoint(tmp_path / "0")
    changed(tmp_path / "0", tmp_path / "1")
    known = [weights(tmp_path / name) for name in ("0", "1")]
    target, last = tmp_path / "target", [0, 0]
    with ExitStack() as stack:
        savers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", IN_TURN, str(target), str(tmp_path / name)],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                )
            )
            for name in ("0", "1")
        ]
        for number in range(30):
            for turn in range(2):  # which of them is told first
                saver = savers[(number + turn) % 2]
                assert saver.stdin is not None
                saver.stdin.write(f"{(9_000, 30_000, 10**9)[(number + turn) % 3]}\n")
                saver.stdin.flush()
            for saver in savers:
                assert saver.stdout is not None
                assert saver.stdout.readline() == "saved\n"
            found = weights(target)
            last[[same(found, one) for one in known].index(True)] += 1
            left = [name for name in entries(target) if name.endswith(".part") or name == SAVING]
            assert not left
        for saver in savers:
            assert saver.stdin is not None
            saver.stdin.close()
    assert sum(last) == 30


def test_a_folder_is_packed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waited for another save finds the folder full."""
    from asyncgen.reference import quantize_checkpoint as module

    resolve = vars(module)["resolve"]

    def slow(*given: Any, **more: Any) -> Path:
        added(tmp_path, "a")
        return resolve(*given, **more)

    monkeypatch.setattr(module, "resolve", slow)
    refused(lambda: module.quantize_checkpoint("demo", tmp_path, progress=False), "folder", "holds")
    assert {*entries(tmp_path)} == {"a"}


KILLED = """
import sys, torch, asyncgen
torch.set_num_threads(1)
models = [asyncgen.load_model(folder, device="cpu", progress=False) for folder in sys.argv[2:]]
sizes = (9_000, 1_000_000, 12_000)
print("ready", flush=True)
while True:
    for number in range(6):
        models[number % 2].save_pretrained(sys.argv[1], max_shard_size=sizes[number % 3])
        print("saved", flush=True)
"""


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model = asyncgen.load_model(folder, device="cpu", progress=False)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def changed(source: Path, folder: Path) -> Any:
    """Save a model of the same shapes, whose every tensor differs."""
    model = asyncgen.load_model(source, device="cpu", progress=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    model.save_pretrained(folder)
    return model


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def kill_saves(tmp_path: Path, times: int) -> dict[str, int]:
    """Kill a process that saves two models in turn; count what its folder is."""
    pick = random.Random(0)
    save_checkpoint(tmp_path / "0")
    changed(tmp_path / "0", tmp_path / "1")
    known = [weights(tmp_path / name) for name in ("0", "1")]
    assert not any(torch.equal(value, known[1][name]) for name, value in known[0].items())
    target = tmp_path / "target"
    counts = {"whole": 0, "refused": 0}
    for _ in range(times):
        command = [
            sys.executable,
            "-c",
            KILLED,
            *map(str, (target, tmp_path / "0", tmp_path / "1")),
        ]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = 2 + pick.randrange(6)
            for _ in range(lines):
                process.stdout.readline()
            signal.sigtimedwait([], pick.random() * 0.02)
            process.kill()
        try:
            found = weights(target)
        except ModelLoadError as error:
            assert "half saved" in str(error)
            counts["refused"] += 1
        else:
            assert any(same(found, one) for one in known)
            counts["whole"] += 1
        model = asyncgen.load_model(tmp_path / "0", device="cpu", progress=False)
        model.save_pretrained(target, max_shard_size=9_000)  # the next save heals it
        assert same(weights(target), known[0])
        assert not [name for name in entries(target) if name.endswith(".part") or name == SAVING]
    return counts


@pytest.mark.gate
@pytest.mark.skipif(sys.platform == "win32", reason="kills with signals")
def test_a_killed_save_is_whole_or_refused(tmp_path: Path) -> None:
    assert kill_saves(tmp_path, 3)["whole"] > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_killed_saves_are_whole_or_refused(tmp_path: Path) -> None:
    counts = kill_saves(tmp_path, 200)
    assert sum(counts.values()) == 200
    assert counts["whole"] > 100


class Killed(BaseException):
    """Stands for a signal: nothing is tidied up behind it."""


@contextmanager
def killed_at(number: int) -> Iterator[None]:
    """Let so many renames happen; from the next one on nothing is renamed or removed."""
    calls, is_over = itertools.count(), False
    replace, unlink = os.replace, os.unlink

    def rename(*given: Any, **more: Any) -> None:
        nonlocal is_over
        if next(calls) >= number:
            is_over = True
            raise Killed
        replace(*given, **more)

    def remove(*given: Any, **more: Any) -> None:
        if not is_over:
            unlink(*given, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "replace", rename)
        patched.setattr(os, "unlink", remove)
        yield


def test_a_save_that_ends_between_two_renames_is_refused(model: Any, tmp_path: Path) -> None:
    """Each rename is the one that does not happen once."""
    new = changed(tmp_path / "source", tmp_path / "new")
    for last in itertools.count():
        target = tmp_path / f"target {last}"
        model.save_pretrained(target, max_shard_size=9_000)
        try:
            with killed_at(last):
                new.save_pretrained(target, max_shard_size=30_000)
            break  # all of them happened
        except Killed:
            with pytest.raises(ModelLoadError, match="half saved"):
                weights(target)
            new.save_pretrained(target, max_shard_size=30_000)
        assert same(weights(target), weights(tmp_path / "new"))
        assert not [name for name in entries(target) if name.endswith(".part") or name == SAVING]
    assert last > 4


def test_shards_do_not_replace_those_of_another_index(model: Any, tmp_path: Path) -> None:
    target = tmp_path / "target"
    model.save_pretrained(target, max_shard_size=9_000)
    first = {*target.glob("model-*.safetensors")}
    model.save_pretrained(target, max_shard_size=9_000)
    second = {*target.glob("model-*.safetensors")}
    assert len(first) == len(second) and not first & second
    assert same(weights(target), weights(tmp_path / "source"))
