"""``asyncgen quantize``: write a checkpoint with packed weights, and report their errors."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asyncgen_apps.cli.common_options import Debug, FollowLinks, Revision, Token
from asyncgen_apps.cli.errors import UserError, one_line_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

_WINDOW = 512
_DEMO_DOCUMENTS = 200
_DEMO_SEED = 99_991
"""Seed of documents that the bundled model was not trained on."""


def quantize(
    source: Annotated[str, typer.Argument(help="demo, a folder, or a hub id.")],
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    to: Annotated[str, typer.Option(help="int8 or int4.")] = "int4",
    text: Annotated[
        Path | None, typer.Option(help="A text whose perplexity is printed, before and after.")
    ] = None,
    revision: Revision = None,
    token: Token = None,
    follow_links: FollowLinks = None,
    debug: Debug = False,
) -> None:
    """Write a checkpoint with weights of 8 or 4 bits (compressed-tensors).

    Example: asyncgen quantize demo demo-int4 --to int4
    """
    with one_line_errors(debug=debug):
        if text is not None and not text.is_file():
            raise UserError(f"--text {text}: there is no such file")
        from asyncgen import AsyncLLM

        AsyncLLM.check_source(source)  # before torch is imported
        from asyncgen import quantize_checkpoint

        address: dict[str, Any] = {"revision": revision, "token": token}
        address["follow_links"] = bool(follow_links)
        chosen: Any = to
        report = quantize_checkpoint(source, out, to=chosen, **address)
        typer.echo(
            f"{report.matrices} matrices: {report.bytes_before / 1e6:.1f} MB became "
            f"{report.bytes_after / 1e6:.1f} MB"
        )
        typer.echo(
            f"errors of weights: largest {report.largest_error:.3g}, mean {report.mean_error:.3g}, "
            f"{report.relative_error:.2%} of their size"
        )
        if text is not None or source == "demo":
            texts = [text.read_text(encoding="utf-8")] if text is not None else _held_out()
            before = perplexity(source, texts, address)
            after = perplexity(out, texts, {})
            typer.echo(f"perplexity: {before:.4f} before, {after:.4f} after")


def perplexity(source: str | Path, texts: "Sequence[str]", address: dict[str, Any]) -> float:
    """Return the perplexity of texts, cut into windows of 512 tokens.

    Args:
        source: The model.
        texts: At least one.
        address: Revision and token for the hub.
    """
    import torch

    from asyncgen import load_model, load_tokenizer

    model, tokenizer = load_model(source, **address), load_tokenizer(source, **address)
    loss, count = 0.0, 0
    for text in texts:
        ids = torch.tensor(tokenizer.encode(text), dtype=torch.int64, device="cpu")
        for window in torch.split(ids, _WINDOW):
            if len(window) < 2:
                continue
            logits: Any = model(input_ids=window[None], return_dict=True).logits
            target = window[1:]
            found = torch.nn.functional.cross_entropy(
                logits[0, :-1].float(), target, reduction="sum"
            )
            loss, count = loss + float(found), count + len(target)
    if count == 0:
        raise UserError("the text is too short: give one of two tokens at least")
    return float(torch.tensor(loss / count, dtype=torch.float32, device="cpu").exp())


def _held_out() -> list[str]:
    """Return documents that the bundled model was not trained on."""
    from itertools import islice

    from asyncgen_apps.demo_model.corpus import documents, text_of

    return [text_of(document) for document in islice(documents(_DEMO_SEED), _DEMO_DOCUMENTS)]
