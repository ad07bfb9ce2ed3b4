"""``generate`` as a caller meets it: arguments, streamers, errors before any work."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.generate.mixin import GenerationMixin
from asyncgen.generation.outputs import GenerateDecoderOnlyOutput
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from streamers import BaseStreamer
from tests.cases import for_each
from tests.doubles.models import EOS, TableModel

PROMPT = torch.tensor([[5, 6, 7]])


class Recorder(BaseStreamer):
    """A streamer that writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        """Take ids."""
        self.calls.append(value.tolist())

    def end(self) -> None:
        """Take the end."""
        self.calls.append("end")

    def fail(self, error: BaseException) -> None:
        """Take an error."""
        self.calls.append(type(error))


def test_signature_is_the_documented_one() -> None:
    names = list(inspect.signature(GenerationMixin.generate).parameters)
    assert names == [
        "self",
        "inputs",
        "generation_config",
        "logits_processor",
        "stopping_criteria",
        "prefix_allowed_tokens_fn",
        "synced_gpus",
        "assistant_model",
        "streamer",
        "negative_prompt_ids",
        "negative_prompt_attention_mask",
        "custom_generate",
        "kwargs",
    ]


def test_streamer_gets_prompt_tokens_and_end() -> None:
    streamer = Recorder()
    ids = TableModel().generate(PROMPT, max_new_tokens=3, streamer=streamer)
    assert isinstance(ids, torch.Tensor)
    new = ids[0, 3:].tolist()
    assert streamer.calls == [[[5, 6, 7]], *([token] for token in new), "end"]


def test_streamer_receives_the_failure() -> None:
    def fail(input_ids: torch.Tensor, positions: torch.Tensor) -> None:
        if positions[0, -1] == 4:
            raise ZeroDivisionError

    streamer = Recorder()
    with pytest.raises(ZeroDivisionError):
        TableModel(hook=fail).generate(PROMPT, max_new_tokens=9, streamer=streamer)
    assert streamer.calls[-1] is ZeroDivisionError
    assert len(streamer.calls) == 4


def test_a_streamer_whose_reader_left_ends_the_call() -> None:
    class Leaving(Recorder):
        """Its reader leaves after two tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.cancelled = CancelCriteria()

        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.calls) == 3:
                self.cancelled.set()

    model = TableModel()
    model.generate(PROMPT, max_new_tokens=50, streamer=Leaving())
    assert model.num_forwards == 3


def test_dict_output_has_one_entry_a_step() -> None:
    output = TableModel().generate(
        PROMPT,
        max_new_tokens=4,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    assert isinstance(output, GenerateDecoderOnlyOutput)
    assert output.scores is not None
    assert output.logits is not None
    assert len(output.scores) == len(output.logits) == 4
    assert [int(step.argmax()) for step in output.scores] == output.sequences[0, 3:].tolist()


def test_stopping_criteria_of_the_caller() -> None:
    cancel = CancelCriteria()
    cancel.set()
    ids = TableModel().generate(
        PROMPT, max_new_tokens=9, stopping_criteria=StoppingCriteriaList([cancel])
    )
    assert isinstance(ids, torch.Tensor)
    assert ids.shape == (1, 4)


def test_bos_stands_in_for_a_missing_prompt() -> None:
    ids = TableModel(bos_token_id=65).generate(max_new_tokens=2)
    assert isinstance(ids, torch.Tensor)
    assert ids[0, 0] == 65
    with pytest.raises(ValueError, match="bos_token_id"):
        TableModel().generate(max_new_tokens=2)


@for_each(
    ("arguments", "message"),
    [
        ({"max_new_token": 3}, "max_new_token"),
        ({"max_length": 3}, "max_length"),
        ({"temperature": 0.0, "do_sample": True}, "temperature"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
        ({"input_ids": PROMPT}, "inputs"),
        ({"negative_prompt_attention_mask": PROMPT, "nonsense": 1}, "."),
    ],
)
def test_bad_arguments_are_errors_before_any_work(arguments: dict[str, Any], message: str) -> None:
    model = TableModel()
    with pytest.raises(ValueError, match=message):
        model.generate(PROMPT, **arguments)
    assert model.num_forwards == 0


@for_each(
    "prompt",
    [torch.tensor([5, 6]), torch.zeros(1, 0, dtype=torch.int64), torch.tensor([[0.5]]),
     torch.tensor([[-1]]), torch.tensor([[100_000]])],
)  # fmt: skip
def test_bad_prompts_are_errors(prompt: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="input_ids"):
        TableModel().generate(prompt)


def test_allowed_tokens_by_prefix_work_with_every_strategy() -> None:
    def two_more(prompt: int, ids: torch.Tensor) -> list[int]:
        return [(int(ids[-1]) + step) % 100 + 1 for step in (2, 3)]

    for options in ({}, {"num_beams": 3}, {"do_sample": True}):
        ids: Any = TableModel().generate(
            torch.tensor([[1, 2]]), prefix_allowed_tokens_fn=two_more, max_new_tokens=6, **options
        )
        row = ids[0].tolist()
        assert all(
            new in two_more(0, torch.tensor([old]))
            for old, new in zip(row[1:-1], row[2:], strict=True)
        )


def test_end_of_sequence_ends_and_pads() -> None:
    model = TableModel(script="ab", prompt_length=3)
    ids = model.generate(PROMPT, max_new_tokens=20)
    assert isinstance(ids, torch.Tensor)
    assert ids[0, 3:].tolist() == [*b"ab", EOS]


def test_autocast_to_another_dtype_is_refused_by_name() -> None:
    model: Any = asyncgen.AutoModelForCausalLM.from_pretrained("demo")
    given: Any = {"max_new_tokens": 3, "do_sample": False}
    right = model.generate(PROMPT, **given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(InvalidRequestError, match=r"`torch.autocast` is .*enabled=False"):
            model.generate(PROMPT, **given)
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(model.generate(PROMPT, **given), right)
        half: Any = asyncgen.AutoModelForCausalLM.from_pretrained("demo", dtype=torch.bfloat16)
        assert len(half.generate(PROMPT, **given)[0]) == len(right[0])
