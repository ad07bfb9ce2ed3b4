"""Files of a stranger's folder: what is no regular file, too large, or elsewhere is not read."""

from __future__ import annotations

import ast
import copy
import itertools
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import load_file

import asyncgen
from asyncgen.checkpoints import stored_files
from asyncgen.checkpoints.stored_files import SAVING, enter_folder, read_stored
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.reference.quantize_checkpoint import quantize_checkpoint
from tests.cases import for_each
from tests.checkpoints.strange_folders import SMALL
from tests.checkpoints.whole_folder import MODULES, save_whole

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no FIFOs, links need rights")

LARGE = ("model.safetensors", "2_Dense/model.safetensors")


def fifo(file: Path) -> None:
    os.mkfifo(file)


def listening(file: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as found:
        here = os.getcwd()
        os.chdir(file.parent)  # the name of a socket is short
        try:
            found.bind(file.name)
        finally:
            os.chdir(here)


def device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def sparse(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(20_000_000_000)


def folder_of_that_name(file: Path) -> None:
    file.mkdir()


def nothing_behind_it(file: Path) -> None:
    file.symlink_to("nowhere")


def elsewhere(file: Path) -> None:
    file.symlink_to("/etc/hostname")


ODD: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (fifo, listening, device, sparse, folder_of_that_name, nothing_behind_it, elsewhere)
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that loads, with the settings of embeddings."""
    folder = save_whole(tmp_path_factory.mktemp("whole"))
    (folder / "additional_chat_templates").mkdir(exist_ok=True)
    return folder


def opened(folder: Path, **options: Any) -> None:
    """Read all that is read of a folder."""
    asyncgen.load_model(folder, device="cpu", progress=False, **options)
    asyncgen.load_tokenizer(folder, **options)


@for_each("name", (*SMALL, *LARGE))
@for_each("kind", ODD)
def test_what_is_no_regular_file_is_refused(
    whole: Path, tmp_path: Path, name: str, kind: str
) -> None:
    folder = tmp_path / f"{kind} {name.replace('/', ' ')}"
    shutil.copytree(whole, folder)
    file = folder / name
    file.unlink(missing_ok=True)
    if name == "model.safetensors.index.json":
        (folder / "model.safetensors").unlink()
    ODD[kind](file)
    if kind == "sparse" and name in LARGE:
        return  # a file of weights may be large
    with pytest.raises(ModelLoadError) as caught:
        opened(folder)
    assert name in str(caught.value)


OLD = {
    "vocab.json": ("GPT2Tokenizer", "merges.txt"),
    "merges.txt": ("GPT2Tokenizer", "vocab.json"),
    "tokenizer.model": ("LlamaTokenizer", "vocab.json"),
    "spiece.model": ("T5Tokenizer", "vocab.json"),
}
"""Files of folders without ``tokenizer.json``: a class that reads each, and what else is there."""


@for_each("name", OLD)
@for_each("kind", ODD)
def test_old_layouts_are_opened_alike(tmp_path: Path, name: str, kind: str) -> None:
    folder = new(tmp_path)
    class_name, other = OLD[name]
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": class_name}))
    (folder / other).write_text("{}")
    ODD[kind](folder / name)
    with pytest.raises(ModelLoadError, match=re.escape(name)):
        asyncgen.load_tokenizer(folder)


@for_each("name", ("vocab.json", "tokenizer.model"))
def test_old_layouts_have_limits_of_size_that_say_the_largest(tmp_path: Path, name: str) -> None:
    folder = new(tmp_path)
    class_name, other = OLD[name]
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": class_name}))
    (folder / other).write_text("{}")
    sparse(folder / name)
    most = (24 if name.endswith(".model") else 32) << 20
    with pytest.raises(ModelLoadError, match=f"{name} has 20000000000 bytes; at most {most}"):
        asyncgen.load_tokenizer(folder)


@for_each("kind", ["Pooling", "Dense"])
@for_each("path", ["..", "../other", "/etc", "a/../../other", "..\\other", "1_Pooling/..", ".", ""])
def test_modules_are_folders_beside_their_list(
    whole: Path, tmp_path: Path, kind: str, path: str
) -> None:
    """What lies elsewhere is not read: it would be refused, or change the vectors."""
    tmp_path = new(tmp_path)
    shutil.copytree(whole, tmp_path / "it")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text("no JSON: it is not read")
    modules = json.loads(MODULES)
    (one,) = (each for each in modules if each["type"].endswith(kind))
    one["path"] = path
    (tmp_path / "it/modules.json").write_text(json.dumps(modules))
    with pytest.raises((ModelLoadError, InvalidRequestError), match=r"modules\.json"):
        with asyncgen.LLM(tmp_path / "it") as llm:
            llm.embed("a")


def test_links_inside_are_followed(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "linked"
    shutil.copytree(whole, folder)
    (folder / "modules.json").unlink()
    (folder / "weights").mkdir()
    (folder / "model.safetensors").rename(folder / "weights/it.safetensors")
    (folder / "model.safetensors").symlink_to("weights/it.safetensors")
    opened(folder)
    (tmp_path / "by another name").symlink_to(folder)
    opened(tmp_path / "by another name")


def test_links_of_the_hub_lead_to_its_blobs(whole: Path, tmp_path: Path) -> None:
    place = tmp_path / "models--a--b"
    snapshot, blobs = place / "snapshots/1234", place / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in whole.iterdir():
        if file.is_file() and file.name != "modules.json":
            shutil.copy(file, blobs / f"hash of {file.name}")
            (snapshot / file.name).symlink_to(f"../../blobs/hash of {file.name}")
    opened(snapshot)
    (tmp_path / "private.json").write_text("{}")
    (snapshot / "added_tokens.json").symlink_to("../../../private.json")
    with pytest.raises(ModelLoadError, match=r"added_tokens\.json is a link to .*private\.json"):
        opened(snapshot)


def test_links_to_elsewhere_are_followed_on_demand(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(whole / name)
    for open_one in (asyncgen.load_model, asyncgen.load_tokenizer):
        with pytest.raises(ModelLoadError, match="is a link to .*follow_links=True"):
            open_one(folder)
        with pytest.raises(InvalidRequestError, match="follow_links"):
            open_one(folder, follow_links="yes")  # type: ignore[arg-type]
    opened(folder, follow_links=True)
    with pytest.raises(ModelLoadError, match="follow_links=True"), asyncgen.LLM(folder) as llm:
        llm.generate("a")
    with asyncgen.LLM(folder, follow_links=True) as llm:
        assert llm.generate("a", max_new_tokens=2).finish_reason


def test_a_folder_inside_may_not_be_elsewhere(whole: Path, tmp_path: Path) -> None:
    folder, other = tmp_path / "it", tmp_path / "other"
    shutil.copytree(whole, folder)
    other.mkdir()
    (other / "private.jinja").write_text("secret")
    (folder / "additional_chat_templates").rmdir()
    (folder / "additional_chat_templates").symlink_to(other)
    with pytest.raises(ModelLoadError, match="additional_chat_templates is a link"):
        asyncgen.load_tokenizer(folder)


def test_a_half_saved_folder_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    shutil.copytree(whole, folder)
    (folder / SAVING).touch()
    with pytest.raises(ModelLoadError, match="half saved.*save the model again"):
        opened(folder)
    with pytest.raises(ModelLoadError, match="half saved"):
        enter_folder(folder, follow_links=True)


def test_sizes_have_limits(tmp_path: Path) -> None:
    for name in ("a.jinja", "a.json", "tokenizer.json", "vocab.txt", "spiece.model"):
        sparse(tmp_path / name)
        with pytest.raises(ModelLoadError, match="has 20000000000 bytes; at most"):
            read_stored(tmp_path / name)


def test_a_subfolder_is_looked_at_alone(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "models").mkdir()
    shutil.copytree(whole, tmp_path / "models/good")
    (tmp_path / "models/other.json").symlink_to(tmp_path / "secret.json")
    opened(tmp_path / "models", subfolder="good")
    (tmp_path / "models/linked").symlink_to(whole)
    with pytest.raises(ModelLoadError, match="linked leads out of .*follow_links=True"):
        opened(tmp_path / "models", subfolder="linked")
    opened(tmp_path / "models", subfolder="linked", follow_links=True)


def new(folder: Path) -> Path:
    """Make a folder for one case of a test."""
    return Path(tempfile.mkdtemp(dir=folder))


def weights_elsewhere(folder: Path, name: str) -> None:
    """Let an index name a file that is a link to weights outside of the folder."""
    private = folder.parent / "private.safetensors"
    (folder / "model.safetensors").rename(private)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(private)
    index = {"weight_map": dict.fromkeys(load_file(private), name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@for_each("name", ("weights.dat", "weights", "deep/weights.dat", "README.md"))
def test_shards_of_any_name_may_not_be_elsewhere(whole: Path, tmp_path: Path, name: str) -> None:
    tmp_path = new(tmp_path)
    shutil.copytree(whole, tmp_path / "it")
    weights_elsewhere(tmp_path / "it", name)
    with pytest.raises(ModelLoadError, match=f"{name} is a link to .*private"):
        opened(tmp_path / "it")
    opened(tmp_path / "it", follow_links=True)


def test_shards_of_a_module_may_not_be_elsewhere(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "it")
    weights_elsewhere(tmp_path / "it/2_Dense", "deep/x.safetensors")
    shutil.move(tmp_path / "it/private.safetensors", tmp_path)
    link = tmp_path / "it/2_Dense/deep/x.safetensors"
    link.unlink()
    link.symlink_to(tmp_path / "private.safetensors")
    with pytest.raises(ModelLoadError, match=r"x\.safetensors is a link to .*private"):
        opened(tmp_path / "it")


@for_each("blobs", ("/", "..", "../../outside"))
def test_blobs_are_the_caches_own(whole: Path, tmp_path: Path, blobs: str) -> None:
    tmp_path = new(tmp_path)
    (tmp_path / "outside").mkdir()
    place = tmp_path / "models--a--b"
    shutil.copytree(whole, place / "snapshots/1234")
    (place / "blobs").symlink_to(blobs)
    (tmp_path / "outside/config.json").write_text("{}")
    (place / "snapshots/1234/config.json").unlink()
    (place / "snapshots/1234/config.json").symlink_to(tmp_path / "outside/config.json")
    with pytest.raises(ModelLoadError, match=r"config\.json is a link to .*outside"):
        opened(place / "snapshots/1234")


def test_blobs_beside_what_is_no_cache_are_outside(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backup/snapshots/1234"
    shutil.copytree(whole, folder)
    (tmp_path / "backup/blobs").mkdir()
    (folder / "config.json").rename(tmp_path / "backup/blobs/config.json")
    (folder / "config.json").symlink_to("../../blobs/config.json")
    with pytest.raises(ModelLoadError, match="is a link to .*blobs"):
        opened(folder)


def test_subfolders_of_the_cache_lead_to_its_blobs(whole: Path, tmp_path: Path) -> None:
    place = tmp_path / "models--a--b"
    commit, blobs = "0" * 40, place / "blobs"
    inside = place / "snapshots" / commit / "sub"
    for each in (inside, blobs, place / "refs"):
        each.mkdir(parents=True)
    (place / "refs/main").write_text(commit)
    for file in whole.iterdir():
        if file.is_file() and file.name != "modules.json":
            shutil.copy(file, blobs / f"hash of {file.name}")
            (inside / file.name).symlink_to(f"../../../blobs/hash of {file.name}")
    opened(inside)
    opened(inside.parent, subfolder="sub")
    for open_one in (asyncgen.load_model, asyncgen.load_tokenizer):
        open_one("a/b", subfolder="sub", cache_dir=tmp_path, local_files_only=True, progress=False)


def test_every_file_of_a_folder_follows_links_on_demand(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    for file in whole.iterdir():
        (folder / file.name).symlink_to(file)
    (tmp_path / "defaults.json").write_text('{"max_new_tokens": 3}')
    (folder / "generation_config.json").symlink_to(tmp_path / "defaults.json")
    model = asyncgen.load_model(folder, follow_links=True, progress=False)
    assert model.generation_config.max_new_tokens == 3
    opened(folder, follow_links=True)
    read = asyncgen.GenerationConfig.from_pretrained
    with pytest.raises(ModelLoadError, match="follow_links=True"):
        read(folder)
    assert read(folder, follow_links=True).max_new_tokens == 3
    with pytest.raises(InvalidRequestError, match="follow_links"):
        read(folder, follow_links=1)


@for_each("name", ("NOTES.md", "notes.txt"))
def test_copies_are_opened_like_everything_else(tmp_path: Path, name: str) -> None:
    tmp_path = new(tmp_path)
    shutil.copytree(Path(asyncgen.__file__).parent / "demo", tmp_path / "it")
    (tmp_path / "secret").write_text("private words")
    (tmp_path / "it" / name).symlink_to(tmp_path / "secret")
    with pytest.raises(ModelLoadError, match=f"{name} is a link to .*secret"):
        quantize_checkpoint(tmp_path / "it", tmp_path / "new", progress=False)
    assert not (tmp_path / "new").exists()


@for_each("count, size", ((1001, 1), (9, 31 << 20)))
def test_copies_without_an_end_are_refused(tmp_path: Path, count: int, size: int) -> None:
    """They are names of one sparse file, and cost nothing to make."""
    tmp_path = new(tmp_path)
    shutil.copytree(Path(asyncgen.__file__).parent / "demo", tmp_path / "it")
    with (tmp_path / "it/0.md").open("wb") as stream:
        stream.truncate(size)
    for number in range(1, count):
        os.link(tmp_path / "it/0.md", tmp_path / f"it/{number}.md")
    with pytest.raises(ModelLoadError, match="too much beside its weights: at most 1000 files of"):
        quantize_checkpoint(tmp_path / "it", tmp_path / "new", progress=False)
    assert not (tmp_path / "new").exists()


@for_each("name, named", ((" odd .md", "' odd .md'"), (".hidden.json", "'.hidden.json'")))
def test_copies_of_odd_names_are_refused_by_name(tmp_path: Path, name: str, named: str) -> None:
    tmp_path = new(tmp_path)
    shutil.copytree(Path(asyncgen.__file__).parent / "demo", tmp_path / "it")
    (tmp_path / "it" / name).write_text("{}")
    with pytest.raises(ModelLoadError, match=f"the name of a file.*{named}: a plain name"):
        quantize_checkpoint(tmp_path / "it", tmp_path / "new", progress=False)


@pytest.mark.gate
@for_each("name, other", (("weights.md", None), ("sub/notes.md", "notes.md")))
def test_weights_are_not_written_over_by_copies(
    tmp_path: Path, name: str, other: str | None
) -> None:
    tmp_path = new(tmp_path)
    folder = tmp_path / "it"
    shutil.copytree(Path(asyncgen.__file__).parent / "demo", folder)
    (folder / name).parent.mkdir(exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / name)
    index = {"weight_map": dict.fromkeys(tensors, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if other is None:
        quantize_checkpoint(folder, tmp_path / "new", progress=False)
        assert any("packed" in name for name in load_file(tmp_path / "new" / name))
        return
    (folder / other).write_text("notes")
    with pytest.raises(ModelLoadError, match=f"weights in a file called .*{other}"):
        quantize_checkpoint(folder, tmp_path / "new", progress=False)


def test_a_path_that_was_made_of_another_knows_its_places(tmp_path: Path) -> None:
    for name in ("it/sub", "out"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "out/a.json").write_text("{}")
    (tmp_path / "it/sub/a.json").symlink_to(tmp_path / "out/a.json")
    trusted = enter_folder(tmp_path / "it", follow_links=True)
    strict = enter_folder(tmp_path / "it", follow_links=False)
    ways: tuple[Callable[[Path], Path], ...] = (
        lambda it: it / "sub/a.json",
        lambda it: next(it.glob("*/a.json")),
        lambda it: (it / "sub/b.json").with_name("a.json"),
        lambda it: next(iter((it / "sub").iterdir())),
    )
    for made in ways:
        assert read_stored(made(trusted)) == b"{}"
        with pytest.raises(ModelLoadError, match="is a link to"):
            read_stored(made(strict))
    for forgets in (Path, copy.copy):
        with pytest.raises(ModelLoadError, match="is a link to"):
            read_stored(forgets(trusted / "sub/a.json"))


@for_each("knows", (True, False))
def test_a_link_that_is_put_there_meanwhile_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    """Another thread swaps a file and a link, as fast as it can."""
    tmp_path = new(tmp_path)
    if not knows:
        monkeypatch.setattr(stored_files, "_KNOWS_PLACES", False)
    folder, secret = tmp_path / "it", tmp_path / "secret.json"
    folder.mkdir()
    secret.write_text("private words")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            (folder / "link").symlink_to(secret)
            (folder / "link").rename(folder / "a.json")
            (folder / "file").write_text("{}")
            (folder / "file").rename(folder / "a.json")

    (folder / "a.json").write_text("{}")
    entered = enter_folder(folder, follow_links=False)
    found: set[bytes | type[ModelLoadError]] = set()
    thread = threading.Thread(target=swap)
    thread.start()
    end = time.monotonic() + 20
    try:
        for number in itertools.count():
            if number >= 1000 and (ModelLoadError in found or time.monotonic() > end):
                break  # a busy machine lets the other thread wait
            try:
                found.add(read_stored(entered / "a.json"))
            except ModelLoadError as error:
                found.add(type(error))
    finally:
        done.set()
        thread.join()
    assert found <= {b"{}", ModelLoadError} and ModelLoadError in found


@for_each("count, size, named", ((101, 1, "has 101 templates"), (9, 1 << 21, "together")))
def test_templates_have_a_limit_together(
    whole: Path, tmp_path: Path, count: int, size: int, named: str
) -> None:
    tmp_path = new(tmp_path)
    shutil.copytree(whole, tmp_path / "it")
    more = tmp_path / "it/additional_chat_templates"
    with (more / "0.jinja").open("wb") as stream:
        stream.truncate(size)
    for i in range(1, count):
        (more / f"{i}.jinja").hardlink_to(more / "0.jinja")
    with pytest.raises(ModelLoadError, match=named):
        asyncgen.load_tokenizer(tmp_path / "it")


@for_each("name", (".x", "chat:1", " odd", "x" * 198))
def test_templates_of_names_that_cannot_be_saved_are_refused(
    whole: Path, tmp_path: Path, name: str
) -> None:
    tmp_path = new(tmp_path)
    shutil.copytree(whole, tmp_path / "it")
    (tmp_path / "it/additional_chat_templates" / f"{name}.jinja").write_text("a")
    with pytest.raises(ModelLoadError, match="chat_template.*a plain name of a file"):
        asyncgen.load_tokenizer(tmp_path / "it")


@for_each("kind", (fifo, listening, folder_of_that_name, elsewhere))
def test_detectors_of_watermarks_are_opened_alike(
    tmp_path: Path, kind: Callable[[Path], None]
) -> None:
    tmp_path = new(tmp_path)
    detector = asyncgen.BayesianDetectorModel
    (tmp_path / "config.json").write_text('{"watermarking_depth": 2}')
    kind(tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        detector.from_pretrained(tmp_path)


@for_each("depth", (3, 10**9, 10**30))
def test_a_detector_has_the_memory_of_its_file(tmp_path: Path, depth: int) -> None:
    tmp_path = new(tmp_path)
    detector = asyncgen.BayesianDetectorModel
    detector(asyncgen.BayesianDetectorConfig(2)).save_pretrained(tmp_path)
    assert detector.from_pretrained(tmp_path).watermarking_depth == 2
    (tmp_path / "config.json").write_text(json.dumps({"watermarking_depth": depth}))
    with pytest.raises(ModelLoadError, match=f"depth {depth}"):
        detector.from_pretrained(tmp_path)


OPENERS = {"open", "load_file", "safe_open", "read_text", "read_bytes", "from_file", "read_file"}
OPENERS |= {"memmap", "fromfile", "copyfile", "copytree", "copy2", "load_library", "fdopen"}
ALLOWED = {
    "checkpoints/stored_files.py": {"open"},
    "checkpoints/saved_folder.py": {"open"},
    "checkpoints/saving.py": {"open"},  # of a `SavedFolder`
    "reference/quantize_checkpoint.py": {"open"},  # of a `SavedFolder`
    "text/old_layouts.py": {"read_file"},  # by `library_path`
    "runtime/device_memory.py": {"read_text"},  # of the system
    "models/kernels/products.py": {"read_text"},  # of the system
    "cache/mamba.py": {"open"},  # a method of states
    "models/mixers/dense_states.py": {"open"},  # a method of states
}
"""What opens files, or is called like it, beside `stored_files`."""


def test_nothing_else_opens_files() -> None:
    """A new place goes through `open_stored`; one that opens no checkpoint's file is listed."""
    root = Path(asyncgen.__file__).parent
    found: dict[str, set[str]] = {}
    for file in root.rglob("*.py"):
        tree = ast.parse(file.read_text())
        ours = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asyncgen.")
            for alias in node.names
        }
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            if isinstance(called, ast.Attribute):
                name = called.attr
                owner = called.value.id if isinstance(called.value, ast.Name) else ""
                is_load = name == "load" and owner in ("torch", "np", "numpy", "pickle", "json")
                is_opener = name in OPENERS or is_load
            else:
                name = getattr(called, "id", "")
                is_opener = name in OPENERS - ours - defined
            if is_opener:
                found.setdefault(file.relative_to(root).as_posix(), set()).add(name)
    assert found == ALLOWED
