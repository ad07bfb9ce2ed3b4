"""The settings of a run, and a short one: from the seed to an exported folder and a plot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from asyncgen_apps.demo_model.export import load
from asyncgen_apps.demo_model.network import NetworkConfig
from asyncgen_apps.demo_model.run import TrainingRun, plot_losses
from asyncgen_apps.demo_model.train import train

if TYPE_CHECKING:
    from pathlib import Path


CONFIG = NetworkConfig(
    vocab_size=600, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2
)


def _train(out: Path, stop_first: int = 0) -> torch.Tensor:
    for steps in filter(None, (stop_first, 3)):
        run = TrainingRun(seed=1, steps=steps, tokens_per_step=512, warmup=2, decay_share=0.0)
        train(run, out, CONFIG, compiled=False, every=2, sample=40)
    return load(out / "model")[0].model.embed_tokens.weight.detach()


def test_three_steps_end_to_end(tmp_path: Path) -> None:
    _train(tmp_path)
    record = json.loads((tmp_path / "model" / "training.json").read_text(encoding="utf-8"))
    assert record["finished"]
    assert record["tokens"] == 3 * 512
    assert record["command"].startswith(
        "python -m asyncgen_apps.demo_model.train --seed 1 --steps 3 "
    )
    assert [step for step, _ in record["held_out"]] == [2, 3]
    assert (tmp_path / "model" / "loss.png").stat().st_size < 60_000


@pytest.mark.gate
def test_an_interrupted_run_ends_the_same(tmp_path: Path) -> None:
    whole = _train(tmp_path / "whole")
    torch.testing.assert_close(_train(tmp_path / "parts", stop_first=2), whole)


def test_the_rate_warms_up_holds_and_falls() -> None:
    run = TrainingRun(seed=1, steps=100, warmup=10, decay_share=0.2)
    assert run.rate(0) == pytest.approx(0.1)
    assert run.rate(50) == 1.0
    assert run.rate(90) == pytest.approx(0.5)
    assert run.rate(100) == 0.0


def test_a_small_picture_is_written(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    plot_losses([(1, 5.0), (2, 3.0)], [(2, 3.5)], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 60_000
