"""GGUF files at every door that takes a model."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError, ModelLoadError
from tests.apps.cli.doubles import run_cli
from tests.cases import for_each
from tests.checkpoints.gguf.making import read_folder, write_gguf
from tests.checkpoints.gguf.test_tokenizer import ORIGINALS, byte_level, in_order, merges_of
from tests.doubles.hub import Repository, StandInHub
from tests.families.arch.families import make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np


def tiny_parts(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and tensors of a tiny model with its tokenizer."""
    tokenizer = byte_level(ORIGINALS["qwen2"])
    tokens = in_order(tokenizer)
    make("qwen3", folder, vocab_size=len(tokens))
    _, metadata, tensors = read_folder(folder)
    return metadata | {
        "general.sampling.temp": 0.5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            3 if text[:2] in ("<s", "</", "<|") else 1 for text in tokens
        ],
        "tokenizer.ggml.merges": merges_of(tokenizer),
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages[0].content }}<|im_end|>",
    }, tensors


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with its tokenizer, in one file, alone in its folder."""
    folder = tmp_path_factory.mktemp("gguf")
    (folder / "alone").mkdir()
    return write_gguf(folder / "alone" / "tiny-Q8_0.gguf", *tiny_parts(folder / "hf"))


def tokens_of(source: Any, **options: Any) -> list[int]:
    ours = asyncgen.load_model(source, dtype="float32", progress=False, **options)
    ids = torch.tensor([[5, 6, 7]])
    found: list[int] = ours.generate(ids, max_new_tokens=8, do_sample=False)[0].tolist()
    return found


def test_a_file_and_its_folder_are_one_model(model: Path) -> None:
    assert tokens_of(model) == tokens_of(str(model.parent))
    assert asyncgen.load_tokenizer(model.parent).encode_ids("the fox")
    loaded = asyncgen.load_model(model)
    assert loaded.generation_config.eos_token_id == [1, 2]
    assert loaded.generation_config.temperature == 0.5
    assert type(loaded).__name__ == "Qwen3ForCausalLM"


def test_names_that_find_out_by_themselves(model: Path) -> None:
    config = asyncgen.AutoConfig.from_pretrained(model)
    assert (config.model_type, config.num_hidden_layers) == ("qwen3", 4)
    auto = asyncgen.AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    assert auto.config.vocab_size == config.vocab_size
    tokenizer = asyncgen.AutoTokenizer.from_pretrained(model)
    assert tokenizer.decode(tokenizer.encode_ids("the fox")) == "the fox"


@pytest.mark.anyio
async def test_it_streams(model: Path) -> None:
    async with asyncgen.AsyncLLM(model) as llm:
        pieces = [piece async for piece in llm.stream("the fox", max_new_tokens=5, seed=1)]
        answer = await llm.generate([{"role": "user", "content": "fox"}], max_new_tokens=5, seed=1)
    assert pieces
    assert answer.usage.prompt_tokens > 1


def test_a_command_takes_it(model: Path) -> None:
    result = run_cli("generate", "the fox", "--model", str(model), "--max-new-tokens", "3")
    assert result.exit_code == 0
    assert result.stdout


def test_several_models_in_a_folder_are_listed(model: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(model, tmp_path / name)
    with pytest.raises(ModelLoadError, match=r"2 models \('a.gguf', 'b.gguf'\)"):
        asyncgen.load_model(tmp_path)


@pytest.fixture
def hub(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    files = {"tiny-Q8_0.gguf": model.read_bytes(), "tiny-Q4_0.gguf": b"GGUF", "README.md": b"#"}
    with StandInHub({"owner/tiny": Repository(files)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


@pytest.mark.parametrize("part", ["Q8_0", "q8_0", "tiny-Q8_0.gguf"])
def test_the_hub_sends_the_file_that_is_named(
    hub: StandInHub, model: Path, part: str, tmp_path: Path
) -> None:
    source = f"owner/tiny:{part}"
    assert tokens_of(source, cache_dir=tmp_path) == tokens_of(model)
    fetched = [path for path in hub.paths("GET") if path.endswith((".gguf", ".md"))]
    assert {path.rpartition("/")[2] for path in fetched} == {"tiny-Q8_0.gguf"}
    tokenizer = asyncgen.load_tokenizer(source, cache_dir=tmp_path, local_files_only=True)
    assert tokenizer.name_or_path == source
    with pytest.raises(ModelLoadError, match=r"no GGUF file of the name or ending 'Q5_K'"):
        asyncgen.load_model("owner/tiny:Q5_K", cache_dir=tmp_path)


def test_a_file_has_no_revisions_and_folders(model: Path) -> None:
    with pytest.raises(InvalidRequestError, match="revision"):
        asyncgen.load_model(model, revision="main")
    with pytest.raises(InvalidRequestError, match="subfolder"):
        asyncgen.load_model(model, subfolder="x")


def test_later_parts_may_not_lie_elsewhere(tmp_path: Path) -> None:
    """The file that is named may be a link, as its name is the caller's; what it asks for not."""
    folder, out = tmp_path / "it", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    meta, tensors = tiny_parts(tmp_path / "hf")
    names = list(tensors)
    half = len(names) // 2
    first, second = (f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    write_gguf(folder / first, meta, {name: tensors[name] for name in names[:half]})
    write_gguf(out / second, meta, {name: tensors[name] for name in names[half:]})
    (folder / second).symlink_to(out / second)
    for source in (folder, folder / first):
        with pytest.raises(ModelLoadError, match=f"{second} is a link to .*out"):
            asyncgen.load_model(source, progress=False)
        asyncgen.load_model(source, progress=False, follow_links=True)
    write_gguf(out / "whole.gguf", meta, tensors)
    (tmp_path / "mine.gguf").symlink_to(out / "whole.gguf")
    asyncgen.load_model(tmp_path / "mine.gguf", progress=False)


PARTS: dict[str, dict[str, Any]] = {
    "split.no": {"split.no": 0},
    "split.count": {"split.count": 3},
    "split.tensors.count": {"split.tensors.count": 7},
}


@for_each("key", PARTS)
def test_parts_of_two_models_are_refused(
    key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    meta, tensors = tiny_parts(folder / "hf")
    names = list(tensors)
    half = len(names) // 2
    for index, some in enumerate((names[:half], names[half:])):
        split = {"split.no": index, "split.count": 2, "split.tensors.count": len(names)}
        split |= PARTS[key] if index else {}
        file = folder / f"m-0000{index + 1}-of-00002.gguf"
        write_gguf(file, {**meta, **split}, {name: tensors[name] for name in some})
    with pytest.raises(ModelLoadError, match=f"00002-of-00002.gguf: `{key}` is {PARTS[key][key]}"):
        asyncgen.load_model(folder / "m-00001-of-00002.gguf", progress=False)
