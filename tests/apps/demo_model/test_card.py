"""The model card is written from the measured figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from asyncgen_apps.demo_model.card import card
from asyncgen_apps.demo_model.export import export
from asyncgen_apps.demo_model.network import Network, NetworkConfig
from asyncgen_apps.demo_model.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

SCORE = {"prompts": 100, "both": 91, "character": 95, "thing": 94, "place": 80, "ended": 99}


def test_it_shows_the_figures_and_the_samples(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = NetworkConfig(vocab_size=600, hidden_size=32, intermediate_size=48, layers=1, heads=4)
    export(Network(config), train_tokenizer(1, 600, 40), tmp_path)
    training: dict[str, Any] = {
        "command": "python -m asyncgen_apps.demo_model.train --seed 7 --steps 3 --out DIR",
        "parameters": 123456,
        "tokens": 789000,
        "steps": 3,
        "drills": 1,
        "late_from": 2,
        "torch": "2.13.0",
        "held_out": [[3, 0.875]],
    }
    (tmp_path / "training.json").write_text(json.dumps(training), encoding="utf-8")
    figures = {
        "held_out_drawn": SCORE,
        "held_out_greedy": SCORE,
        "invented_names_drawn": SCORE,
        "follow_ups": {"asked": 50, "right": 47},
        "quiz": {"asked": 100, "right": {"sums": 41}},
        "samples": [
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "A\n\nB"}]
        ],
    }
    text = card(tmp_path, figures)
    for part in (
        "123,456",
        "0.875",
        "91 of 100",
        "47 of 50",
        "sums: 41",
        "> A\n>\n> B",
        "not a general",
    ):
        assert part in text
    assert training["command"] in text
