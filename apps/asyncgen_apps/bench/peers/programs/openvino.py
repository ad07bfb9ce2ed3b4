"""Run OpenVINO GenAI's continuous batching, step by step.

The checkpoint is exported with optimum, its weights as they are stored, or packed by NNCF without
any calibration: integers by row, codes of 4 bits by groups of up to 128 inputs (its defaults),
tables in 8 bits. Keys and values are kept in the data type that is computed in: by default it would
round them to eight bits. Where weights are packed, inputs are rounded as it does by default.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from asyncgen_apps.bench.peers.programs.protocol import Task

GIGABYTE = 1 << 30
LARGEST_GROUP = 128
"""Most inputs of a group of 4-bit codes."""
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class Pipeline:
    """Program that steps a ``ContinuousBatchingPipeline``: chunked prompts, cached prefixes."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._pipeline: Any = None
        self._handles: dict[int, Any] = {}
        self._number = 0

    def load(self, **task: Unpack[Task]) -> dict[str, str]:
        """Export the checkpoint, unless that is done, and open it."""
        weights = task.get("weights")
        model = Path(task["work"]) / ("openvino" if weights is None else f"openvino-{weights}")
        if not model.exists():
            export(task["folder"], model, weights)
        import openvino
        import openvino_genai

        scheduling = openvino_genai.SchedulerConfig()
        scheduling.max_num_seqs = task["streams"]
        scheduling.cache_size = -(-task["cache_bytes"] // GIGABYTE)
        scheduling.dynamic_split_fuse = True
        scheduling.enable_prefix_caching = True
        precision = PRECISIONS[task["dtype"]]
        exactly = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"} if weights is None else {}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(model),
            scheduling,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": precision,
                "KV_CACHE_PRECISION": precision,
                **exactly,
                "INFERENCE_NUM_THREADS": task["threads"],
            },
        )
        self._numbers = openvino.Tensor
        self._options = openvino_genai.GenerationConfig
        return {"version": openvino_genai.__version__, "openvino": openvino.__version__}

    def prepare(self, requests: list[dict[str, Any]]) -> None:
        """Do nothing: memory was reserved for all requests."""

    def add(self, index: int, prompt: list[int], new_tokens: int) -> None:
        """Take a request."""
        import numpy

        options = self._options(max_new_tokens=new_tokens, ignore_eos=True, do_sample=False)
        options.set_eos_token_id(0)  # it needs one, and ignores it
        ids = self._numbers(numpy.array([prompt], dtype=numpy.int64))
        self._handles[index] = self._pipeline.add_request(self._number, ids, options)
        self._number += 1

    def step(self) -> Iterator[tuple[int, list[int]]]:
        """Make one step."""
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        for index, handle in list(self._handles.items()):
            while handle.can_read():
                for output in handle.read().values():
                    yield index, list(output.generated_ids)


def export(folder: str, target: Path, weights: str | None) -> None:
    """Convert a checkpoint; texts are token ids, so its tokenizer is left out."""
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    options: dict[str, Any] = {"load_in_8bit": weights == "int8"}
    if weights == "int4":
        config = json.loads((Path(folder) / "config.json").read_text())
        group = math.gcd(config["hidden_size"], config["intermediate_size"], LARGEST_GROUP)
        options["quantization_config"] = OVWeightQuantizationConfig(bits=4, group_size=group)
    model = OVModelForCausalLM.from_pretrained(
        folder, export=True, compile=False, stateful=True, **options
    )
    half = target.with_suffix(".part")
    model.save_pretrained(half)
    half.rename(target)
