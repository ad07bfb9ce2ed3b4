"""Things that generate: scripted ones that tests can hold and break, and a small real model."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.streamers.cases import Case


def ids_of(case: Case, text: str) -> list[int]:
    """Return the ids of a text."""
    return case.tokenizer.encode(text, add_special_tokens=False).ids


class Script:
    """A `generate` that puts given ids, one a step, and obeys its stopping criteria.

    Attributes:
        steps: number of ids that were put.
        gate: the step to stop at until `go` is set, None to run through.
        go: lets the script go on at its gate.
        waiting: set when the gate is reached.
        stopped: whether a criterion stopped it.
        finished: set when it has returned or raised.
    """

    def __init__(
        self, ids: Sequence[int], *, gate: int | None = None, error: BaseException | None = None
    ) -> None:
        self.ids = list(ids)
        self.gate = gate
        self.error = error  # raised after the last id
        self.steps = 0
        self.go = threading.Event()
        self.waiting = threading.Event()
        self.stopped = False
        self.finished = threading.Event()

    def __call__(
        self,
        prompt: Sequence[int] = (),
        *,
        streamer: Any,
        stopping_criteria: Sequence[Callable[..., torch.Tensor]] = (),
    ) -> int:
        """Generate; returns the number of steps."""
        try:
            self._loop(list(prompt), streamer, stopping_criteria)
        finally:
            self.finished.set()
        return self.steps

    def _loop(
        self,
        ids: list[int],
        streamer: Any,
        criteria: Sequence[Callable[..., torch.Tensor]],
    ) -> None:
        streamer.put(torch.tensor([ids], dtype=torch.long))
        for token_id in self.ids:
            if self.steps == self.gate:
                self.waiting.set()
                assert self.go.wait(60)
            ids.append(token_id)
            streamer.put(torch.tensor([token_id]))
            self.steps += 1
            now = torch.tensor([ids])
            if any(bool(criterion(now, None).all()) for criterion in criteria):
                self.stopped = True
                break
        if self.error is not None:
            raise self.error
        streamer.end()

    def thread(self, target: Callable[..., Any] | None = None, **kwargs: Any) -> threading.Thread:
        """Start a thread: of the script itself, or of a streamer's `run` with the script."""
        if target is None:
            thread = threading.Thread(target=self, kwargs=kwargs)
        else:
            thread = threading.Thread(target=target, args=(self,), kwargs=kwargs)
        thread.start()
        return thread


def tiny_llama(case: Case, *, seed: int = 0) -> tuple[Any, Any]:
    """Return a random Llama model of transformers and a tokenizer for it."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=case.size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=case.tokenizer, pad_token="<pad>", eos_token="</s>"
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer
