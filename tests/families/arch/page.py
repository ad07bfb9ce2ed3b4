"""The tables of ``asyncgen/docs/families.md``: the proofs of a family, and its kernels.

``python -m tests.families.arch.page`` writes them anew; tests compare them with the results here.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import asyncgen
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.models.attention.paged.fused import FusedKernel
from asyncgen.models.attention.paged.native_attention import NativeAttention
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from asyncgen.models.cuda_graphs import why_not
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.native_linear import NativeKernel, NativeStack
from tests.families.arch.families import FAMILIES, make
from tests.families.arch.proofs import PROOFS, is_compared
from tests.families.arch.test_family_strategies import CHECKPOINTS

if TYPE_CHECKING:
    from asyncgen.models.decoder import DecoderLM

PAGE = Path(asyncgen.__file__).parent / "docs" / "families.md"
PROVED = ("Family", "checkpoints", "rows, padding, pages", *PROOFS)
COMPUTED = ("Family", "float32", "bfloat16", "attention on CUDA", "recorded on CUDA")
BEST = FusedKernel(lambda *_: None, True, sums_request=object())
"""A fused kernel that has all that one may have."""


def proved(family: str, core: DecoderLM) -> tuple[str, ...]:
    """Make a family's row of the table of proofs."""
    count = sum(each == family for each, _ in CHECKPOINTS)
    slides = any(options.window is not None for options in core.config.attention)
    rounded = "refused" if slides else "yes" if is_compared(core) else "not compared"
    marks = {**dict.fromkeys(PROOFS, "yes"), "quantised cache": rounded}
    if core.config.has_states:
        marks |= {"contrastive search": "refused"}
    return (f"`{family}`", str(count), "yes", *marks.values())


def computed(family: str, single: DecoderLM, half: DecoderLM) -> tuple[str, ...]:
    """Make a family's row of the table of kernels: its cores at float32 and at bfloat16."""
    options = half.config.attention
    fused = sum(BEST.serves(each) for each in options)
    attention = {len(options): "fused", 0: "plain products"}.get(fused, "both, by layer")
    recorded = "no" if half.config.has_states or why_not(half, BEST) else "yes"
    return (f"`{family}`", served_by(single), served_by(half), attention, recorded)


def served_by(core: DecoderLM) -> str:
    """Name the kernels that compute the layers of packed rows on this machine."""
    core.prepare()
    storage = PagedStorage(core.config, 8, 4, dtype=core.dtype)
    products = [each.ready() for each in core.layers.modules() if isinstance(each, Linear)]
    is_ours = all(isinstance(each, NativeKernel | NativeStack) for each in products)
    if not (is_ours and NativeAttention.serves(storage)):
        return "torch"
    compiled = PagedAttention(core.config, storage).compiled
    return "one call" if core.runs_in_one_call and compiled is not None else "our products"


def tables() -> dict[str, list[tuple[str, ...]]]:
    """All rows of the page's tables, by the heading that they stand below."""
    found: dict[str, list[tuple[str, ...]]] = {
        "What is proved": [PROVED],
        "What computes them": [COMPUTED],
    }
    for family in sorted(FAMILIES):
        with TemporaryDirectory() as folder:
            make(family, Path(folder))
            single, half = (
                asyncgen.load_model(folder, dtype=dtype).core for dtype in ("float32", "bfloat16")
            )
            found["What is proved"].append(proved(family, single))
            found["What computes them"].append(computed(family, single, half))
    return found


def written(heading: str, rows: list[tuple[str, ...]], text: str) -> str:
    """The text of a page, with rows in the place of those of the first table below a heading."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    before, mark, after = text.partition(f"## {heading}\n")
    assert mark, f"there is no heading {heading!r}"
    table = "\n".join(lines) + "\n"
    return before + mark + re.sub(r"(^\|.*\n)+", lambda _: table, after, count=1, flags=re.M)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    for heading, rows in tables().items():
        page = written(heading, rows, page)
    PAGE.write_text(page, encoding="utf-8")
