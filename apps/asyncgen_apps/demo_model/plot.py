"""The plot of the losses over a training run."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
from typing import TYPE_CHECKING

from matplotlib import pyplot

if TYPE_CHECKING:
    from pathlib import Path


def plot_losses(
    losses: list[tuple[int, float]], held_out: list[tuple[int, float]], path: Path
) -> None:
    """Draw training and held-out loss over the steps.

    Args:
        losses: (step, training loss) pairs.
        held_out: (step, held-out loss) pairs.
        path: The PNG file to write.
    """
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
