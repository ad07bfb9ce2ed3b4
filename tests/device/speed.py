"""Tokens per second of this library and of transformers, over streams and lengths of prompts.

The sides are those of ``asyncgen bench concurrency``: the same prompts, all at once, greedily, each
side with the device to itself.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen_apps.bench.checkpoints import MADE, SHAPES, write_description
from asyncgen_apps.bench.models import Checkpoint
from asyncgen_apps.bench.random_models import bandwidth, bytes_per_token
from asyncgen_apps.bench.sides.streams import AsyncgenStreams
from asyncgen_apps.bench.sides.transformers import TransformersContinuous, TransformersPadded
from tests.device.context import Finding, Skipped

if TYPE_CHECKING:
    from asyncgen_apps.bench.jobs import Run
    from tests.device.context import Context
    from tests.device.plan import Item

__all__ = ["checkpoint_of", "continuous", "ours", "padded"]

WARM_TOKENS = 20
"""A size of a step is recorded when it has been wanted 17 times."""

LARGEST_WARMED = 2**17
"""Tokens of prompts that are computed twice, to record the steps behind them first."""

CAUTION = 1.5
"""A cell is begun if so many times what the last one would have taken for it is left."""

OTHERWISE: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 0),
    "use_cuda_graph": ({"use_cuda_graph": False}, 2),
    "use_async_batching": ({"use_async_batching": False}, 2),
    "prefill_chunk_size": ({"prefill_chunk_size": 512}, 0),
}
"""Options of ``AsyncLLM``, and how many of the cells they are tried on; 0: all that matter."""


def checkpoint_of(context: Context, shape: str) -> Checkpoint:
    """The description of a network, to be drawn on the device."""
    folder = context.folder / shape
    if not folder.exists():
        folder.mkdir()
        write_description(folder, {**SHAPES, **MADE}[shape], context.sizes.dtype)
    return Checkpoint.at(folder)


def _cells(context: Context) -> list[tuple[int, int]]:
    """Streams and tokens of their prompts: the cheap ones first."""
    sizes = context.sizes
    cells = [(streams, prompt) for prompt in sizes.prompts for streams in sizes.streams]
    return sorted(cells, key=lambda cell: cell[0] * cell[1])


def ours(context: Context, item: Item) -> Finding:
    """This library, with the options that the item names."""
    side: AsyncgenStreams = context.kept.setdefault(f"{item.shape} side", AsyncgenStreams())
    options, count = OTHERWISE[item.argument]
    cells = _cells(context)
    if item.argument == "prefill_chunk_size":
        cells = [cell for cell in cells if cell[1] == max(context.sizes.prompts)][:2]
    figures = anyio.run(partial(_measure, context, item, side, cells[: count or None], options))
    if item.argument == "plain":
        found = {"bytes_per_token": bytes_per_token(side._model)}
        found["bytes_per_second"] = int(bandwidth(context.device, context.sizes.megabytes))
        alone = [cell for cell in figures["cells"] if cell["streams"] == 1]
        if alone:
            # Pieces of text may hold several tokens, so that the gap between two may be none.
            seconds = alone[0]["seconds"] - alone[0]["first_ms"] / 1000
            used = found["bytes_per_token"] * (context.sizes.answers - 1) / seconds
            figures["share_of_bandwidth"] = used / found["bytes_per_second"]
        figures |= found
    return _finding(figures)


def continuous(context: Context, item: Item) -> Finding:
    """The continuous batching of transformers."""
    side = TransformersContinuous()
    figures = _measure_others(context, item, side)
    # It has several, of very different speed, and chooses by what is installed.
    figures["attention"] = str(side._manager.model.config._attn_implementation)
    return _finding(figures)


def padded(context: Context, item: Item) -> Finding:
    """One ``generate`` of transformers over all prompts."""
    return _finding(_measure_others(context, item, TransformersPadded()))


def _measure_others(context: Context, item: Item, side: Any) -> dict[str, Any]:
    """All cells of another library, whose faults are none of ours."""
    try:
        return anyio.run(partial(_measure, context, item, side, _cells(context), {}))
    except Exception as error:
        said = next(iter(str(error).splitlines()), "")
        raise Skipped(f"{type(error).__name__}: {said}") from error


async def _measure(
    context: Context, item: Item, side: Any, cells: list[tuple[int, int]], options: dict[str, Any]
) -> dict[str, Any]:
    """Load and run every cell for which there is time."""
    start, sizes = perf_counter(), context.sizes
    found = checkpoint_of(context, item.shape)
    await side.load(
        folder=str(found.folder),
        dtype=sizes.dtype,
        streams=max(sizes.streams),
        length=max(sizes.prompts) + sizes.answers,
        device=context.device,
        made=True,
        **options,
    )
    figures: dict[str, Any] = {"load_seconds": perf_counter() - start, "cells": [], "without": []}
    pace = 0.0  # seconds for each token of all prompts and answers
    try:
        for number, (streams, prompt) in enumerate(cells):
            left = context.seconds_left
            if left < CAUTION * pace * streams * (prompt + sizes.answers):
                figures["without"].append(f"{streams} x {prompt}: {left:.0f} s left")
                continue
            begun = perf_counter()
            try:
                figures["cells"].append(await _cell(context, side, found, streams, prompt, number))
            except Exception as error:
                said = next(iter(str(error).splitlines()), "")[:200]
                figures["without"].append(f"{streams} x {prompt}: {type(error).__name__}: {said}")
                if "manager has ended" in said:
                    break
            pace = (perf_counter() - begun) / (streams * (prompt + sizes.answers))
    finally:
        await side.aclose()
    return figures


async def _cell(
    context: Context, side: Any, found: Checkpoint, streams: int, prompt: int, number: int
) -> dict[str, Any]:
    """One number of streams with prompts of one length: once to warm up, once to be measured."""
    answers = context.sizes.answers

    async def run(new_tokens: int, seed: int) -> Run:
        job = found.job(found.prompts(streams, (prompt, prompt), seed), new_tokens)
        got: Run = await side.run(job)
        return got

    if streams * prompt <= LARGEST_WARMED:
        await run(min(WARM_TOKENS, answers), 1000 + number)
    got = await run(answers, 2000 + number)
    cell: dict[str, Any] = {"streams": streams, "prompt": prompt, "seconds": got.total}
    cell["tokens_per_second"] = streams * answers / got.total
    if got.first:
        cell["first_ms"] = 1000 * median(got.first)
        cell["gap_ms"] = 1000 * median(got.gaps)
        cell["decoded_per_second"] = streams * 1000 / cell["gap_ms"]
    return cell


def _finding(figures: dict[str, Any]) -> Finding:
    """Figures and what they say in a line."""
    said = [
        f"{cell['streams']} x {cell['prompt']}: {cell['tokens_per_second']:.1f}"
        for cell in figures["cells"]
    ]
    line = f"tokens/s of streams x prompts: {', '.join(said)}" if said else "nothing was measured"
    if "share_of_bandwidth" in figures:
        line += f"; one stream reads {100 * figures['share_of_bandwidth']:.0f} % of the bandwidth"
    if "attention" in figures:
        line += f"; its attention is {figures['attention']}"
    if figures["without"]:
        line += f"; without {'; '.join(figures['without'])}"
    return Finding(None, line, figures)
