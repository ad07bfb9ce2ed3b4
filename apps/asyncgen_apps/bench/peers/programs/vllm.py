"""Run vLLM's CPU engine in this process, so that no second process takes a core."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from asyncgen_apps.bench.peers.programs.protocol import Task

GIGABYTE = 1 << 30


def environment(threads: int) -> dict[str, str]:
    """Return the variables of its documentation: one core for each thread, Intel's OpenMP."""
    chosen = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}" if threads > 1 else "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    return {**chosen, "LD_PRELOAD": str(library)} if library.exists() else chosen


class Engine:
    """Program that steps an ``LLMEngine`` with its defaults."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._engine: Any = None
        self._runs = 0

    def load(self, **task: Unpack[Task]) -> dict[str, str]:
        """Open the model; what it compiles stays in its own cache."""
        import os

        # The variable holds whole gigabytes.
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(-(-task["cache_bytes"] // GIGABYTE))
        import torch
        import vllm

        options = vllm.EngineArgs(
            model=task["folder"],
            dtype=task["dtype"],
            skip_tokenizer_init=True,
            max_model_len=task["length"],
            max_num_seqs=task["streams"],
            disable_log_stats=True,
        )
        self._engine = vllm.LLMEngine.from_engine_args(options)
        return {
            "version": vllm.__version__,
            "torch": torch.__version__,
            "threads": str(torch.get_num_threads()),
        }

    def prepare(self, requests: list[dict[str, Any]]) -> None:
        """Do nothing: memory was reserved for all requests."""

    def add(self, index: int, prompt: list[int], new_tokens: int) -> None:
        """Take a request."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=new_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._runs += 1
        name = f"{index}-{self._runs}"
        self._engine.add_request(name, {"prompt_token_ids": prompt}, parameters)

    def step(self) -> Iterator[tuple[int, list[int]]]:
        """Make one step."""
        for output in self._engine.step():
            index = int(output.request_id.partition("-")[0])
            yield index, list(output.outputs[0].token_ids)
