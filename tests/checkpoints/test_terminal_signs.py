"""What a stranger's file says reaches no terminal and no log as more than letters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

import asyncgen
from asyncgen.errors import AsyncgenError, ChatTemplateError
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

DEMO = Path(asyncgen.__file__).parent / "demo"
EVIL = "\x1b]0;title\x07\x1b[2Jx\r\nERROR: it was somebody else \u202e"
"""Sets a terminal's title, wipes it, forges a line of a log and turns what follows around."""


def in_json(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        file = folder / name
        state = json.loads(file.read_text(encoding="utf-8"))
        change(state)
        file.write_text(json.dumps(state), encoding="utf-8")

    return spoil


def tensor(folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file({**load_file(file), EVIL: torch.zeros(3)}, file)


def header(folder: Path) -> None:
    text = json.dumps({EVIL: {"dtype": "F3", "shape": [1], "data_offsets": [0, 4]}}).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(4)
    (folder / "model.safetensors").write_bytes(content)


def index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    named = json.dumps({"weight_map": {EVIL: EVIL}})
    (folder / "model.safetensors.index.json").write_text(named)


def template(text: str) -> Callable[[Path], None]:
    return in_json("tokenizer_config.json", lambda state: state.update(chat_template=text))


def packing(**settings: Any) -> Callable[[Path], None]:
    return in_json("config.json", lambda state: state.update(quantization_config=settings))


SPOILED: dict[str, Callable[[Path], None]] = {
    "a tensor": tensor,
    "a tensor of no dtype": header,
    "an index": index,
    "a type of model": in_json("config.json", lambda state: state.update(model_type=EVIL)),
    "a method of packing": packing(quant_method=EVIL),
    "a key of packing": packing(quant_method="gptq", **{EVIL: 1}),
    "a group of packing": packing(
        quant_method="compressed-tensors", config_groups={EVIL: {"weights": {EVIL: 1}}}
    ),
    "a key of a tokenizer": in_json("tokenizer.json", lambda state: state.update({EVIL: 1})),
    "a key of defaults": in_json("generation_config.json", lambda state: state.update({EVIL: 1})),
    "a class": in_json("tokenizer_config.json", lambda state: state.update(tokenizer_class=EVIL)),
    "a template": template("{% " + EVIL),
    "a filter of a template": template("{{ messages|items('" + EVIL + "') }}"),
    "a call of a template": template("{{ messages['" + EVIL + "'].x() }}"),
}


@for_each("kind", SPOILED)
def test_names_of_files_are_told_in_letters(
    kind: str, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(DEMO, tmp_path_factory.mktemp("folder") / "it")
    SPOILED[kind](folder)
    said = []
    try:
        with asyncgen.LLM(folder, device="cpu", progress=False) as llm:
            llm.generate([{"role": "user", "content": "Hello"}], max_new_tokens=1)
    except AsyncgenError as error:
        said.append(str(error))
    said += [record.getMessage() for record in caplog.records]
    assert [text for text in said if not text.isprintable()] == []


def test_what_a_template_says_may_have_lines() -> None:
    error = ChatTemplateError("one\ntwo\x1b[2J")
    assert str(error) == "one\ntwo\\x1b[2J"
