"""What samplers of llama.cpp need of the model and its tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen.engine.requests.prepare import prepare_request
from asyncgen.engine.requests.served_model import ServedModel
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.dry import DRYLogitsProcessor
from asyncgen.generation.stopping.cancel import CancelCriteria
from tests.cases import for_each
from tests.doubles.models import TableModel
from tests.doubles.sinks import RecordingSink
from tests.engine.making import request_for


def without_tokenizer(**given: Any) -> Any:
    """A request of ids to a model that has no tokenizer."""
    served = ServedModel.of(TableModel(), None)
    cancel = CancelCriteria()
    return prepare_request(served, [1, 2, 3], given, cancel=cancel, sink=RecordingSink())


def test_texts_that_break_sequences_need_a_tokenizer() -> None:
    with pytest.raises(InvalidRequestError, match="needs a tokenizer; give an empty list"):
        without_tokenizer(dry_multiplier=1.0)
    request = without_tokenizer(dry_multiplier=1.0, dry_sequence_breakers=[])
    assert [type(each) for each in request.processors] == [DRYLogitsProcessor]


@for_each(
    ("given", "name"),
    [
        ({"xtc_probability": 0.5}, "xtc_probability"),
        ({"dry_multiplier": 0.5}, "dry_multiplier"),
        ({"mirostat": 2}, "mirostat"),
        ({"repeat_last_n": 3, "repeat_penalty": 1.2}, "repeat_last_n"),
    ],
)
def test_a_method_of_the_user_refuses_samplers_by_name(given: dict[str, Any], name: str) -> None:
    def method(model: Any, input_ids: Any, **arguments: Any) -> Any:
        return input_ids

    with pytest.raises(InvalidRequestError, match="a strategy of this library") as caught:
        request_for([1, 2], custom_generate=method, **given)
    assert caught.value.parameter == name
    request_for([1, 2], custom_generate=method, xtc_probability=0, dry_multiplier=0, mirostat=0)
