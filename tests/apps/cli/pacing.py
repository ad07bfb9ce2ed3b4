"""The real ``asyncgen`` command over a model that is slowed down, so that a test can watch it.

``python -m tests.apps.cli.pacing serve …`` is ``asyncgen serve …``, but for what a stream is asked
for: answers go on for :data:`LONG` tokens, one every :data:`DELAY` seconds at the fastest.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from asyncgen import AsyncLLM, Prompt, TextStream

DELAY = 0.02
LONG = 400


def _wait(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    time.sleep(DELAY)
    return scores


def main() -> None:
    """Slow the streams down and run the command."""
    import asyncgen
    from asyncgen_apps.cli import main as run

    fast = asyncgen.AsyncLLM.stream

    def slow(self: AsyncLLM, prompt: Prompt, **params: Any) -> TextStream:
        if params.get("max_new_tokens") == 1:
            return fast(self, prompt, **params)  # the server's own, before it serves
        pace = asyncgen.LogitsProcessorList([_wait])
        return fast(self, prompt, **{**params, "logits_processor": pace, "min_new_tokens": LONG})

    asyncgen.AsyncLLM.stream = slow  # type: ignore[method-assign]
    run()


if __name__ == "__main__":
    main()
