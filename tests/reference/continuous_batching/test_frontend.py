"""Arguments of the synchronous methods become a request, or are refused without a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.engine.options import EngineOptions
from asyncgen.errors import InvalidRequestError, OverloadedError
from asyncgen.generation.config import GenerationConfig
from asyncgen.reference.continuous_batching.frontend import Frontend, names_of
from tests.doubles.models import EOS, TableModel, byte_tokenizer

if TYPE_CHECKING:
    from asyncgen.engine.requests.request import Request


def prepare(
    frontend: Frontend, request_id: str = "it", ids: Any = (1, 2), **params: Any
) -> Request:
    """A request for a prompt."""
    return frontend.prepare(
        "input_ids", ids, request_id, params, streaming=False, record_timestamps=False
    )


def frontend_of(config: GenerationConfig | None = None, **options: Any) -> Frontend:
    """Over a table model."""
    return Frontend(TableModel(), config, EngineOptions(max_running=1), **options)


def test_a_request_has_its_name_and_its_place() -> None:
    frontend = frontend_of()
    request = prepare(frontend, max_new_tokens=3, n=2, do_sample=True)
    assert request.id == "it" and names_of(request) == ["it", "it__child#0"]
    assert frontend.results.request("it__child#0") is request
    assert (frontend.admission.num_waiting, request.prompt_ids) == (1, [1, 2])
    frontend.withdraw([request])
    assert not frontend.results.is_known("it") and frontend.admission.num_waiting == 0


def test_refused_requests_leave_nothing_in_the_queue() -> None:
    frontend = frontend_of(max_queue_size=1)
    for given in ({"nonsense": 1}, {"top_p": 7.0}, {"ids": [999]}, {"ids": "text"}):
        with pytest.raises(InvalidRequestError):
            prepare(frontend, **given)
    kept = [prepare(frontend, "a"), prepare(frontend, "b")]
    with pytest.raises(OverloadedError):
        prepare(frontend, "c")
    frontend.withdraw(kept[:1])
    with pytest.raises(InvalidRequestError, match="in use"):
        prepare(frontend, "b")
    assert frontend.admission.num_waiting == 1
    assert prepare(frontend, "a").id == "a"


def test_request_follows_the_configuration_it_was_given() -> None:
    frontend = frontend_of(GenerationConfig(max_new_tokens=4))
    assert prepare(frontend, "a").params.config.max_length == 6
    own = GenerationConfig(max_new_tokens=9)
    assert prepare(frontend, "b", generation_config=own).params.config.max_length == 11
    assert prepare(frontend, "c", max_new_tokens=None).params.config.max_length == 6
    with pytest.raises(InvalidRequestError, match="a GenerationConfig"):
        prepare(frontend, "d", generation_config={"max_new_tokens": 9})


@pytest.mark.parametrize(("eos", "ends"), [(None, {EOS}), (-1, set()), ([7, 8], {7, 8})])
def test_eos_token_ids_of_request_or_config_end_it(eos: Any, ends: set[int]) -> None:
    for frontend, given in (
        (frontend_of(), {"eos_token_id": eos}),
        (frontend_of(GenerationConfig(eos_token_id=eos)), {}),
    ):
        assert prepare(frontend, **given).stop_checks.eos_token_ids == ends


def test_a_mixture_of_ids_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="eos_token_id"):
        prepare(frontend_of(), eos_token_id=[-1, 5])


def test_text_needs_a_tokenizer() -> None:
    for name in ("stop", "stop_strings"):
        given: dict[str, Any] = {name: ["a"]}
        with pytest.raises(InvalidRequestError, match="pass `tokenizer=`"):
            prepare(frontend_of(), **given)
        assert prepare(frontend_of(tokenizer=byte_tokenizer()), **given)
    with pytest.raises(InvalidRequestError, match="results are token ids"):
        prepare(frontend_of(tokenizer=byte_tokenizer()), skip_special_tokens=False)
