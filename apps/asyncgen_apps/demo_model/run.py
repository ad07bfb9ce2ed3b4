"""Training run: its settings, its record, and its checkpoints."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

    from asyncgen_apps.demo_model.network import Network


@dataclass
class TrainingRun:
    """The settings and the record of one training run.

    Attributes:
        seed: Everything that is drawn is drawn from it.
        steps: Number of optimiser steps.
        tokens_per_step: Number of positions in each step.
        matrix_rate: Highest learning rate of the matrices inside the blocks.
        other_rate: Highest learning rate of everything else.
        warmup: Steps until the highest learning rate.
        drills: Steps, at the start, that only drill copying words from the prompt.
        late_from: The step from which small questions are more frequent and weigh more.
        decay_share: Share of the steps, at the end, in which the rate falls to zero.
        losses: (step, training loss) pairs.
        held_out: (step, held-out loss) pairs.
    """

    seed: int
    steps: int
    tokens_per_step: int = 2048
    matrix_rate: float = 5e-3
    other_rate: float = 3e-3
    warmup: int = 100
    drills: int = 300
    late_from: int = 1800
    decay_share: float = 0.4
    losses: list[tuple[int, float]] = field(default_factory=list)
    held_out: list[tuple[int, float]] = field(default_factory=list)

    def rate(self, step: int) -> float:
        """Give the share of the highest rates at a step: warm up, hold, then fall to zero.

        Args:
            step: The step's number, from 0.

        Returns:
            A number from 0 to 1.
        """
        left = (self.steps - step) / max(1.0, self.steps * self.decay_share)
        return min(1.0, (step + 1) / self.warmup, left)


def save(
    path: Path,
    network: Network,
    optimizers: list[torch.optim.Optimizer],
    run: TrainingRun,
    step: int,
) -> None:
    """Write a checkpoint to resume from, replacing the last one at once.

    Args:
        path: The file.
        network: The network.
        optimizers: The optimisers.
        run: The record so far.
        step: Number of steps done.
    """
    part = path.with_suffix(".part")
    state: dict[str, Any] = {
        "network": network.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "losses": run.losses,
        "held_out": run.held_out,
        "step": step,
    }
    torch.save(state, part)
    part.replace(path)


def record(run: TrainingRun, network: Network, step: int, folder: Path) -> None:
    """Write training.json and the loss plot.

    Args:
        run: The record so far.
        network: The network.
        step: Number of steps done.
        folder: Folder to write to.
    """
    command = (
        f"python -m asyncgen_apps.demo_model.train --seed {run.seed} --steps {run.steps} --out DIR"
    )
    content = {
        "command": command,
        "finished": step == run.steps,
        "steps_done": step,
        "tokens": step * run.tokens_per_step,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "torch": str(torch.__version__),
        **{key: value for key, value in asdict(run).items() if key != "losses"},
    }
    text = json.dumps(content, indent=2)
    (folder / "training.json").write_text(text + "\n", encoding="utf-8")
    plot_losses(run.losses, run.held_out, folder / "loss.png")


def plot_losses(
    losses: list[tuple[int, float]], held_out: list[tuple[int, float]], path: Path
) -> None:
    """Draw training and held-out loss over the steps.

    Args:
        losses: (step, training loss) pairs.
        held_out: (step, held-out loss) pairs.
        path: The PNG file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=90)
    if losses:
        axes.plot(*zip(*losses, strict=True), color="#9db7d5", linewidth=1, label="training")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color="#c0392b", linewidth=1.5, label="held out")
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("cross-entropy per token (nats)")
    axes.grid(visible=True, which="both", alpha=0.25)
    if losses or held_out:
        axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def resume(
    path: Path, network: Network, optimizers: list[torch.optim.Optimizer], run: TrainingRun
) -> int:
    """Resume a run from its last checkpoint.

    The learning rate is constant before the decay, so a run may also be resumed with another
    number of steps, as long as neither number's decay had begun.

    Args:
        path: The checkpoint.
        network: Filled with the checkpoint's weights.
        optimizers: Filled with the checkpoint's state.
        run: Filled with the checkpoint's record.

    Returns:
        The number of steps done.
    """
    state = torch.load(path, weights_only=True)
    network.load_state_dict(state["network"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    run.losses, run.held_out = state["losses"], state["held_out"]
    return int(state["step"])
