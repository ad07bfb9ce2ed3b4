"""Files of a stranger's folder: what is no regular file, too large, or elsewhere is not read."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

import asyncgen
from asyncgen.checkpoints.stored_files import SAVING, check_folder, read_stored
from asyncgen.errors import InvalidRequestError, ModelLoadError
from tests.cases import for_each
from tests.checkpoints.strange_folders import SMALL
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.tokenizers import save_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no FIFOs, links need rights")

LARGE = ("model.safetensors", "2_Dense/model.safetensors")
MODULES = """[
 {"type": "sentence_transformers.models.Transformer", "path": ""},
 {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
 {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
]"""


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
    folder = tmp_path_factory.mktemp("whole")
    save_checkpoint(folder)
    save_tokenizer(folder, "byte_level")
    (folder / "modules.json").write_text(MODULES)
    for name in ("1_Pooling", "2_Dense", "additional_chat_templates"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    dense = '{"in_features": 32, "out_features": 8, "bias": false}'
    (folder / "2_Dense/config.json").write_text(dense)
    weights = {"linear.weight": torch.ones(8, 32, dtype=torch.float32, device="cpu")}
    save_file(weights, folder / "2_Dense/model.safetensors")
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
        check_folder(folder, follow_links=True)


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
