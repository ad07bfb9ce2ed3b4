"""Run transformers in three ways: ``generate``, ``generate`` in a thread, and batching."""

from __future__ import annotations

from threading import Thread
from time import perf_counter
from typing import Any

PAGE_SIZE = 32
NO_END = -1
"""Id that its manager takes for "no end-of-sequence token"."""


class Generate:
    """Program that calls ``generate`` on the main thread, over a padded batch.

    A lone request reuses the part of its beginning that the last cache has.
    """

    def __init__(self) -> None:
        """Load nothing yet."""
        self._model: Any = None
        self._cache: Any = None
        self._cached: list[int] = []

    def load(self, folder: str, dtype: str, threads: int, **task: Any) -> dict[str, str]:
        """Load the model."""
        self._model = load_model(folder, dtype, threads)
        return versions()

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Answer all requests in one batch; they want equally many tokens."""
        import torch
        from transformers import DynamicCache

        (new_tokens,) = {request["new_tokens"] for request in requests}
        prompts = [request["prompt"] for request in requests]
        longest = max(map(len, prompts))
        ticks: list[float] = []
        start = perf_counter()
        cache = self._reused(prompts[0]) if len(prompts) == 1 else None
        pads = [[0] * (longest - len(prompt)) for prompt in prompts]
        ones = [
            [0] * len(pad) + [1] * len(prompt) for pad, prompt in zip(pads, prompts, strict=True)
        ]
        rows = [pad + prompt for pad, prompt in zip(pads, prompts, strict=True)]
        cache = cache or DynamicCache()
        output = self._model.generate(
            input_ids=torch.tensor(rows, dtype=torch.int64, device="cpu"),
            attention_mask=torch.tensor(ones, dtype=torch.int64, device="cpu"),
            past_key_values=cache,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=[Clock(ticks, start)],
        ).tolist()
        if len(prompts) == 1:
            # The last token was never an input.
            self._cache, self._cached = cache, output[0][:-1]
        else:
            self._cache, self._cached = None, []
        return {
            "times": [ticks for _ in prompts],
            "tokens": [row[longest:] for row in output],
        }

    def _reused(self, prompt: list[int]) -> Any:
        """Return the last cache, cut to the beginning that ``prompt`` shares, if any."""
        same = shared_prefix(self._cached, prompt[:-1])
        if self._cache is None or same < PAGE_SIZE:
            return None
        self._cache.crop(same - len(self._cached))
        return self._cache


class Clock:
    """Stopping criterion that notes the time of each token, and never stops."""

    def __init__(self, ticks: list[float], start: float) -> None:
        """Append to ``ticks`` the seconds since ``start``."""
        self._ticks = ticks
        self._start = start

    def __call__(self, input_ids: Any, scores: Any, **arguments: Any) -> Any:
        """Note the time."""
        import torch

        self._ticks.append(perf_counter() - self._start)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device="cpu")


class Threaded:
    """Program that streams as documented: ``generate`` in a thread, a ``TextIteratorStreamer``."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._model: Any = None
        self._tokenizer: Any = None

    def load(self, folder: str, dtype: str, threads: int, **task: Any) -> dict[str, str]:
        """Load model and tokenizer on the main thread."""
        from transformers import AutoTokenizer

        self._model = load_model(folder, dtype, threads)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        return versions()

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Answer one request; a token counts when the streamer has been handed it."""
        import torch
        from transformers import TextIteratorStreamer

        (request,) = requests
        ticks: list[float] = []
        ids: list[int] = []
        start = perf_counter()

        class Noting(TextIteratorStreamer):  # type: ignore[misc]
            def put(self, value: Any) -> None:
                is_prompt = self.next_tokens_are_prompt
                super().put(value)
                if not is_prompt:
                    ticks.append(perf_counter() - start)
                    ids.extend(value.tolist())

        inputs = torch.tensor([request["prompt"]], dtype=torch.int64, device="cpu")
        streamer = Noting(self._tokenizer, skip_prompt=True)
        arguments = {
            "input_ids": inputs,
            "attention_mask": torch.ones_like(inputs),
            "max_new_tokens": request["new_tokens"],
            "do_sample": False,
            "pad_token_id": 0,
            "streamer": streamer,
        }
        thread = Thread(target=self._model.generate, kwargs=arguments)
        thread.start()
        for _ in streamer:
            pass
        thread.join()
        return {"times": [ticks], "tokens": [ids]}


class Continuous:
    """Program of its continuous batching, with one manager for the life of the model.

    The model is loaded by a thread that ends: only the manager's own thread then has a team of
    OpenMP threads, which is worth 13 %. Attention kernel (sdpa or eager), page size (32 or 256),
    tokens of a batch and page sharing change less than 2 %.
    """

    def __init__(self) -> None:
        """Load nothing yet."""
        self._manager: Any = None

    def load(
        self, folder: str, dtype: str, threads: int, cache_bytes: int, **task: Any
    ) -> dict[str, str]:
        """Load the model and start its manager."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                self._open(folder, dtype, threads, cache_bytes)
            except BaseException as error:
                errors.append(error)

        thread = Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return versions()

    def _open(self, folder: str, dtype: str, threads: int, cache_bytes: int) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        model = load_model(folder, dtype, threads)
        config = model.config
        head = getattr(config, "head_dim", None)
        head = head or config.hidden_size // config.num_attention_heads
        token = 2 * config.num_hidden_layers * config.num_key_value_heads * head
        pages = 64 + cache_bytes // (token * model.dtype.itemsize * PAGE_SIZE)
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=False, eos_token_id=NO_END, pad_token_id=0, max_new_tokens=64
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_SIZE, num_blocks=pages, max_batch_tokens=512
            ),
        )
        self._manager.start()

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Answer all requests, each from its arrival on."""
        from time import sleep

        names: dict[str, int] = {}
        done: dict[int, Any] = {}
        start = perf_counter()

        def collect(timeout: float) -> None:
            result = self._manager.get_result(timeout=timeout)
            if result is None:
                if not self._manager.is_running():
                    raise RuntimeError("its manager has ended")
                return
            if result.error is not None:
                raise RuntimeError(f"its manager: {result.error}")
            if result.is_finished():
                done[names[result.request_id]] = result

        for index in sorted(range(len(requests)), key=lambda one: requests[one]["arrival"]):
            request = requests[index]
            sleep(max(0.0, request["arrival"] - (perf_counter() - start)))
            name = self._manager.add_request(
                request["prompt"],
                max_new_tokens=request["new_tokens"],
                record_timestamps=True,
            )
            names[name] = index
        while len(done) < len(requests):
            collect(1.0)
        return {
            "times": [
                [tick - start for tick in done[index].timestamps] for index in range(len(requests))
            ],
            "tokens": [done[index].generated_tokens for index in range(len(requests))],
        }


def load_model(folder: str, dtype: str, threads: int) -> Any:
    """Load a checkpoint with the attention that is its fastest on a CPU."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    return model.eval()


def versions() -> dict[str, str]:
    """Name the versions of the library and of torch."""
    import torch
    import transformers

    return {"version": transformers.__version__, "torch": torch.__version__}


def shared_prefix(left: list[int], right: list[int]) -> int:
    """Count the equal tokens at the beginning of both."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
