"""Run CTranslate2's generator over a static batch; it cannot add later requests."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Unpack

    from asyncgen_apps.bench.peers.programs.protocol import Task


class Batch:
    """Program that answers all requests in one ``generate_batch``."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._generator: Any = None
        self._words: list[str] = []

    def load(self, **task: Unpack[Task]) -> dict[str, str]:
        """Convert the checkpoint, unless that is done, and open it."""
        import ctranslate2

        folder, dtype = task["folder"], task["dtype"]
        model = Path(task["work"]) / f"ctranslate2-{dtype}"
        if dtype not in ctranslate2.get_supported_compute_types("cpu"):
            raise RuntimeError(f"it does not compute {dtype} on a CPU")
        vocabulary = json.loads((Path(folder) / "tokenizer.json").read_text())["model"]["vocab"]
        self._words = sorted(vocabulary, key=vocabulary.__getitem__)
        if not model.exists():
            converter = ctranslate2.converters.TransformersConverter(folder)
            half = model.with_suffix(".part")
            converter.convert(str(half), quantization=dtype)
            self._name_ends(half / "config.json")
            half.rename(model)
        threads = {"inter_threads": 1, "intra_threads": task["threads"]}
        self._generator = ctranslate2.Generator(
            str(model), device="cpu", compute_type=dtype, **threads
        )
        return {"version": ctranslate2.__version__}

    def _name_ends(self, file: Path) -> None:
        """Name tokens for beginning and end, which it needs; ``min_length`` keeps the end away."""
        config = json.loads(file.read_text())
        config["bos_token"] = config["eos_token"] = self._words[0]
        file.write_text(json.dumps(config))

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Answer all requests; they want equally many tokens."""
        (new_tokens,) = {request["new_tokens"] for request in requests}
        times: list[list[float]] = [[] for _ in requests]
        tokens: list[list[int]] = [[] for _ in requests]
        start = perf_counter()

        def note(step: Any) -> bool:
            times[step.batch_id].append(perf_counter() - start)
            tokens[step.batch_id].append(step.token_id)
            return False

        self._generator.generate_batch(
            [[self._words[token] for token in request["prompt"]] for request in requests],
            max_length=new_tokens,
            min_length=new_tokens,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
            callback=note,
        )
        return {"times": times, "tokens": tokens}
