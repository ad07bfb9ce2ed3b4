"""Training: ``python -m asyncgen_apps.demo_model.train --seed 7 --steps N --out DIR``."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from asyncgen_apps.demo_model.corpus import ROW_SHARE, ROW_TOKENS, Length, length_of_step, row
from asyncgen_apps.demo_model.export import export
from asyncgen_apps.demo_model.network import Network, NetworkConfig
from asyncgen_apps.demo_model.run import TrainingRun, record, resume, save
from asyncgen_apps.demo_model.tokenizer import TOKENIZER_DOCUMENTS, train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HELD_OUT_SEED = 1_000_003
"""Number added to the seed for the documents of the held-out loss."""

console = Console()


Batch = tuple[Tensor, Tensor, Tensor]


def batch(tokenizer: Tokenizer, key: str, length: Length, tokens: int, late: bool = False) -> Batch:
    """Draw one batch.

    Args:
        tokenizer: The tokenizer.
        key: Seed of the draw.
        length: Length of the rows.
        tokens: Number of positions in the whole batch.
        late: True for the second part of the training.

    Returns:
        Inputs, targets and target weights.
    """
    rng = random.Random(key)
    count = max(1, tokens // ROW_TOKENS[length])
    rows = [row(tokenizer, rng, length, late) for _ in range(count)]
    ids = torch.tensor([ids for ids, _ in rows], dtype=torch.int64, device="cpu")
    weights = torch.tensor([weights for _, weights in rows], dtype=torch.float32, device="cpu")
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]


def held_out_batches(tokenizer: Tokenizer, seed: int, tokens: int = 4096) -> list[Batch]:
    """Draw documents that training does not draw.

    Args:
        tokenizer: The tokenizer.
        seed: The run's seed.
        tokens: Number of positions for each length.

    Returns:
        One batch for each length.
    """
    return [
        batch(tokenizer, f"held out:{seed + HELD_OUT_SEED}:{length}", length, tokens)
        for length in ROW_SHARE
    ]


@torch.no_grad()
def measure(network: Network, batches: list[Batch]) -> float:
    """Compute the loss over the spoken tokens of held-out batches, in float32.

    Args:
        network: The network.
        batches: The batches.

    Returns:
        The mean cross-entropy per spoken token.
    """
    total = count = 0.0
    for ids, targets, weights in batches:
        spoken = (weights == 1.0).float()
        total += float(network.loss(ids, targets, spoken)) * float(spoken.sum())
        count += float(spoken.sum())
    return total / count


def make_optimizers(run: TrainingRun, network: Network) -> list[torch.optim.Optimizer]:
    """Make the optimisers: Muon for the matrices inside the blocks, AdamW for the rest.

    Muon learns to copy words from the prompt many times sooner than AdamW alone.

    Args:
        run: The settings.
        network: The network.

    Returns:
        Both optimisers, each with the highest rate as its rate.
    """
    inner = {
        name: parameter
        for name, parameter in network.named_parameters()
        if parameter.dim() == 2 and "layers" in name
    }
    outer = [parameter for name, parameter in network.named_parameters() if name not in inner]
    muon = torch.optim.Muon(
        inner.values(), lr=run.matrix_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        outer, lr=run.other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    return [muon, adamw]


def train(
    run: TrainingRun,
    out: Path,
    config: NetworkConfig,
    compiled: bool = True,
    every: int = 100,
    sample: int = TOKENIZER_DOCUMENTS,
) -> None:
    """Train from the seed, or resume the run that the folder holds.

    Args:
        run: The settings; filled with the record.
        out: Holds the checkpoint to resume from and the exported model in ``model/``.
        config: The network's shape.
        compiled: True compiles the loss.
        every: Steps between records and checkpoints.
        sample: Number of documents that the tokenizer learns from.
    """
    torch.manual_seed(run.seed)
    model_folder, checkpoint = out / "model", out / "checkpoint.pt"
    model_folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(run.seed, config.vocab_size, sample)
    network = Network(config)
    optimizers = make_optimizers(run, network)
    peaks = (run.matrix_rate, run.other_rate)
    first = resume(checkpoint, network, optimizers, run) if checkpoint.exists() else 0
    held_out = held_out_batches(tokenizer, run.seed)
    loss_of = torch.compile(network.loss, dynamic=False) if compiled else network.loss
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("training", total=run.steps, completed=first)
        recent: list[float] = []
        for step in range(first, run.steps):
            for optimizer, peak in zip(optimizers, peaks, strict=True):
                optimizer.param_groups[0]["lr"] = peak * run.rate(step)
            late = step >= run.late_from
            length = length_of_step(run.seed, step, run.drills, late)
            key = f"step:{run.seed}:{step}"
            drawn = batch(tokenizer, key, length, run.tokens_per_step, late)
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(*drawn)
            network.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            recent.append(float(loss.detach()))
            done = step + 1
            progress.advance(task)
            if done % every == 0 or done == run.steps:
                run.losses.append((done, sum(recent) / len(recent)))
                recent.clear()
                run.held_out.append((done, measure(network, held_out)))
                save(checkpoint, network, optimizers, run, done)
                export(network, tokenizer, model_folder)
                record(run, network, done, model_folder)
                progress.console.print(
                    f"{time.strftime('%H:%M:%S')} step {done} loss {run.losses[-1][1]:.3f} "
                    f"held out {run.held_out[-1][1]:.3f}"
                )


def main(
    out: Annotated[
        Path, typer.Option(help="Folder for checkpoints and the exported model.")
    ] = Path("demo-run"),
    seed: Annotated[int, typer.Option(help="Everything drawn is drawn from it.")] = 7,
    steps: Annotated[int, typer.Option(help="Number of optimiser steps.")] = 4000,
    threads: Annotated[int, typer.Option(help="Processor threads.")] = 1,
    compiled: Annotated[bool, typer.Option(help="Compile the network first.")] = True,
) -> None:
    """Train the demo model.

    Args:
        out: Folder for checkpoints and the exported model.
        seed: Everything drawn is drawn from it.
        steps: Number of optimiser steps.
        threads: Processor threads.
        compiled: True compiles the network first.
    """
    torch.set_num_threads(threads)
    train(TrainingRun(seed=seed, steps=steps), out, NetworkConfig(), compiled)


if __name__ == "__main__":
    typer.run(main)
