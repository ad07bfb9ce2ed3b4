"""Every contender that is installed computes the same model: token for token at float32."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.peers.contenders import CONTENDERS, environments_folder
from asyncgen_apps.bench.peers.processes import PeerProcesses
from asyncgen_apps.bench.shape import ModelShape

if TYPE_CHECKING:
    from pathlib import Path

    from asyncgen_apps.bench.peers.programs.protocol import Request, Task

SHAPE = ModelShape(hidden=256, layers=3, heads=4, kv_heads=2, ffn=512, vocab=2048, context=1024)
LOUDNESS = 6
"""Times of what a benchmark draws: of that, a model says little but its last token again."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in which attention, norms and order matter."""
    folder = tmp_path_factory.mktemp("loud")
    write_checkpoint(folder, SHAPE, "bfloat16")
    weights = load_file(folder / "model.safetensors")
    draw = torch.Generator().manual_seed(5)
    for name, weight in weights.items():
        if weight.dim() == 1:
            weight.copy_((torch.rand(weight.shape, generator=draw) + 0.5).to(weight.dtype))
        elif "embed" not in name:
            weight.mul_(LOUDNESS)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def request(prompt: list[int], new_tokens: int = 12, arrival: float = 0.0) -> Request:
    return {"prompt": prompt, "new_tokens": new_tokens, "arrival": arrival}


def expected(folder: Path, requests: list[Request]) -> list[list[int]]:
    """Answers of transformers to each prompt alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = []
    for one in requests:
        ids = torch.tensor([one["prompt"]])
        row = model.generate(ids, max_new_tokens=one["new_tokens"], do_sample=False)[0].tolist()
        answers.append(row[len(one["prompt"]) :])
    return answers


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name, one in CONTENDERS.items() if one.bits is None])
def test_the_same_tokens(name: str, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    python = CONTENDERS[name].python(environments_folder())
    if python is None:
        pytest.skip(f"{name} is not installed: .ci/peers")
    draw = random.Random(1)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(500, 1500) for _ in range(length)]

    task: Task = {
        "folder": str(folder),
        "dtype": "float32",
        "threads": 1,
        "streams": 4,
        "length": 512,
        "cache_bytes": 1 << 28,
        "work": str(tmp_path),
    }
    with PeerProcesses({name: python}, task, 1 << 24, 600.0, [], lambda text: None) as contenders:
        contenders.load(name)

        def agrees(*requests: Request) -> list[list[int]]:
            got = contenders.run(name, list(requests))["tokens"]
            assert got == expected(folder, list(requests))
            return got

        one = CONTENDERS[name]
        before = prompt(200)
        (answer,) = agrees(request(before))
        agrees(request([*before, *answer, *prompt(20)]))  # the next turn of a chat
        if one.many:
            agrees(*(request(prompt(length)) for length in (30, 9, 64, 17)))
        if one.arrivals:
            agrees(*(request(prompt(20), 8 + index, 0.05 * index) for index in range(4)))
