"""The panel's fields are in order, show the model's defaults, and send what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from asyncgen import AsyncLLM, EngineClosedError, GenerationConfig, StreamParams, WatermarkingConfig
from asyncgen_apps.gradio_chat.fields import AIDED, FIELDS, GROUPS, STRATEGIES, draws
from asyncgen_apps.gradio_chat.model import encoder
from asyncgen_apps.gradio_chat.settings import (
    ModelDefaults,
    checked,
    chosen,
    defaults,
    model_strategy,
    stream_params,
)
from asyncgen_apps.gradio_chat.word_tokens import banned, required
from tests.cases import for_each

if TYPE_CHECKING:
    from asyncgen_apps.gradio_chat.fields import Field


DEMO = GenerationConfig(do_sample=True, temperature=0.6, top_p=0.9)


def _params(config: GenerationConfig = DEMO, /, **values: Any) -> StreamParams:
    shown = defaults(config)
    return stream_params({**shown, "top_logprobs": 0, **values}, shown, _letters, "draft")


def _letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_the_models_defaults_are_shown_and_not_sent() -> None:
    shown = defaults(DEMO)
    assert (shown["temperature"], shown["top_p"], shown["strategy"]) == (0.6, 0.9, "sampling")
    assert shown["repetition_penalty"] == 1.0
    assert shown["max_new_tokens"] is None
    assert _params() == {}


def test_stop_strings_of_the_model_are_shown() -> None:
    assert defaults(GenerationConfig(stop_strings=["END", "FIN"]))["stop"] == "END\nFIN"
    assert defaults(GenerationConfig(stop_strings="END"))["stop"] == "END"


def test_only_changed_settings_are_sent() -> None:
    assert _params(temperature=0.3, seed=7, stop="END\n\nFIN") == {
        "temperature": 0.3,
        "seed": 7,
        "stop": ["END", "FIN"],
    }
    assert _params(top_logprobs=3) == {"top_logprobs": 3}


def test_an_empty_field_is_the_default_and_leaves_the_strategy() -> None:
    assert _params(strategy="beams", num_beams=None)["num_beams"] == 4
    assert _params(strategy="contrastive", contrastive_k=None)["top_k"] == 4


@for_each(
    ("strategy", "params"),
    [
        ("greedy", {"do_sample": False}),
        ("beams", {"do_sample": False, "num_beams": 4}),
        ("beam_sample", {"do_sample": True, "num_beams": 4}),
        (
            "diverse",
            {"do_sample": False, "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0},
        ),
        ("contrastive", {"do_sample": False, "penalty_alpha": 0.6, "top_k": 4}),
        ("lookup", {"prompt_lookup_num_tokens": 5}),
        ("early_exit", {"assistant_early_exit": 1}),
        ("assistant", {"assistant_model": "draft"}),
        ("dola", {"dola_layers": "low"}),
    ],
)
def test_strategy_is_selected_by_its_parameters(strategy: str, params: Any) -> None:
    assert _params(strategy=strategy) == params


def test_settings_unused_by_the_strategy_are_not_sent() -> None:
    assert _params(strategy="greedy", temperature=0.3, num_beams=9) == {"do_sample": False}
    assert _params(strategy="lookup", temperature=0.3)["temperature"] == 0.3
    assert _params(strategy="beam_sample", temperature=0.3)["temperature"] == 0.3


def test_a_temperature_of_0_is_greedy() -> None:
    assert _params(temperature=0, top_p=0.3, typical_p=0.5, seed=7) == {
        "do_sample": False,
        "seed": 7,
    }
    sober = _params(strategy="beam_sample", temperature=0)
    assert sober["do_sample"] is False and "temperature" not in sober


def test_help_can_be_had_without_drawing() -> None:
    cold = GenerationConfig(temperature=0.0)
    assert _params(cold) == {}
    assert _params(cold, strategy="sampling", top_p=0.3) == {"do_sample": False}
    warm = _params(cold, strategy="sampling", temperature=0.5)
    assert warm == {"do_sample": True, "temperature": 0.5}
    sober = _params(strategy="lookup", draw=False, temperature=0.3)
    assert sober == {"prompt_lookup_num_tokens": 5, "do_sample": False}


BEAMS = GenerationConfig(num_beams=3)
SAMPLED_BEAMS = GenerationConfig(num_beams=3, do_sample=True)
DIVERSE = GenerationConfig(num_beams=4, num_beam_groups=2, diversity_penalty=0.5)
CONTRASTIVE = GenerationConfig(penalty_alpha=0.6, top_k=4)


@for_each(
    ("config", "strategy", "leaving"),
    [
        (GenerationConfig(), "greedy", {}),
        (BEAMS, "beams", {"num_beams": 1}),
        (SAMPLED_BEAMS, "beam_sample", {"num_beams": 1}),
        (DIVERSE, "diverse", {"num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0}),
        (CONTRASTIVE, "contrastive", {"penalty_alpha": 0.0}),
    ],
)
def test_the_models_own_strategy_can_be_left(
    config: GenerationConfig, strategy: str, leaving: Any
) -> None:
    assert model_strategy(config) == strategy
    assert _params(config) == {}
    assert _params(config, strategy="sampling") == {**leaving, "do_sample": True}


def test_the_models_own_strategy_can_be_changed() -> None:
    assert _params(BEAMS, num_beams=5) == {"do_sample": False, "num_beams": 5}


def test_engine_defaults_are_shown() -> None:
    shown = defaults(GenerationConfig(do_sample=True))
    assert shown["top_k"] == 50
    assert _params(top_k=0)["top_k"] == 0


def test_words_are_sent_as_tokens() -> None:
    assert _params(banned_words="a") == {"bad_words_ids": [[97], [32, 97]]}
    assert _params(strategy="beams", required_words="a")["force_words_ids"] == [[[97], [32, 97]]]
    assert _params(required_words="a") == {}


def test_parameters_that_are_no_plain_numbers() -> None:
    assert _params(decay_factor=1.1) == {"exponential_decay_length_penalty": (0, 1.1)}
    pair = (20, 1.05)
    own = GenerationConfig(exponential_decay_length_penalty=pair)
    assert (defaults(own)["decay_start"], defaults(own)["decay_factor"]) == pair
    assert _params(own, decay_start=5) == {"exponential_decay_length_penalty": (5, 1.05)}
    assert _params(strategy="beams", early_stopping="impossible")["early_stopping"] == "never"
    assert defaults(GenerationConfig(early_stopping=True))["early_stopping"] == "enough"
    assert _params(watermark=True) == {"watermarking_config": WatermarkingConfig()}


def test_chosen_returns_values_that_differ_from_defaults() -> None:
    shown = defaults(DEMO)
    assert chosen({**shown, "seed": 3, "system": "Be kind."}, shown) == {
        "seed": 3,
        "system": "Be kind.",
    }


def test_checked_drops_values_no_widget_can_show() -> None:
    good = {"temperature": 1, "seed": None, "stop": "a", "strategy": "greedy", "draw": True}
    bad = {"top_p": "x", "top_k": 1.5, "min_p": 3, "strategy2": 1, "dola_layers": ["low"]}
    wrong = {"num_beams": True, "temperature": None}
    assert checked({**good, **bad}) == good
    assert checked(wrong) == {}
    shown = defaults(DEMO)
    assert checked(shown) == shown


OTHER: dict[str, Any] = {
    "system": "Be kind.",
    "required_words": "castle",
    "banned_words": "fox\nOnce",
    "stop": "the",
    "early_stopping": "impossible",
    "max_time": 30.0,
    "decay_start": 2,
    "num_assistant_tokens_schedule": "heuristic",
    "dola_layers": "high",
    "num_beams": 6,
    "min_new_tokens": 9,
}


def _other(field: Field) -> Any:
    """A value that is not the default."""
    if field.name in OTHER:
        return OTHER[field.name]
    if field.kind == "flag":
        return not field.neutral
    if field.kind == "slider":
        return round(field.range.low + (field.range.high - field.range.low) * 0.4, 4)
    return (field.neutral or 0) + 2


async def _tokens(llm: AsyncLLM, **given: Any) -> int:
    """Answer with these settings; return how many tokens came."""
    shown = defaults(llm.generation_config)
    values = {**shown, "max_new_tokens": 12, "seed": 1, **given}
    params = stream_params(values, shown, encoder(llm), "demo")
    completion = await llm.generate([{"role": "user", "content": "A story!"}], **params)
    return completion.usage.completion_tokens


@pytest.mark.anyio
async def test_every_strategy_is_served() -> None:
    async with AsyncLLM("demo", num_threads=1) as llm:
        for strategy in STRATEGIES:
            assert await _tokens(llm, strategy=strategy)
        for strategy in AIDED:
            assert await _tokens(llm, strategy=strategy, draw=False)


@pytest.mark.browser
@pytest.mark.anyio
@pytest.mark.timeout(300)
async def test_every_field_is_served_by_every_strategy_that_shows_it() -> None:
    async with AsyncLLM("demo", num_threads=1) as llm:
        for strategy in STRATEGIES:
            for field in FIELDS:
                if field.name != "strategy" and field.used_by({"strategy": strategy, "draw": True}):
                    assert await _tokens(llm, strategy=strategy, **{field.name: _other(field)})


def test_every_field_is_a_parameter_of_a_stream() -> None:
    names = {each.name if each.parameter is None else each.parameter for each in FIELDS}
    assert names - {""} <= set(StreamParams.__annotations__)


def test_names_groups_and_strategies_are_known() -> None:
    assert len({each.name for each in FIELDS}) == len(FIELDS)
    assert {each.group for each in FIELDS} == set(GROUPS)
    for each in FIELDS:
        assert each.only is None or each.only <= set(STRATEGIES)
        assert bool(each.choices) == (each.kind == "choice")
        assert each.neutral is None or each.kind != "choice" or each.neutral in each.choices
    assert set(STRATEGIES) >= AIDED


def test_strategies_that_draw() -> None:
    drawing = {name for name in STRATEGIES if draws({"strategy": name, "draw": True})}
    assert drawing == {"sampling", "beam_sample", *AIDED}
    always = {name for name in STRATEGIES if draws({"strategy": name, "draw": False})}
    assert always == {"sampling", "beam_sample"}


def test_banned_and_required_words_also_follow_a_space() -> None:
    assert banned(["a", " b "], _letters) == [[97], [32, 97], [98], [32, 98]]
    assert required(["a", "b"], _letters) == [[[97], [32, 97]], [[98], [32, 98]]]
    assert banned([" "], lambda text: _letters(text.strip())) == []


def test_a_spelling_that_another_begins_is_not_repeated() -> None:
    assert banned(["a"], lambda text: [7] if text == "a" else [7, 8]) == [[7]]
    assert required(["a"], lambda text: [7]) == [[[7]]]


def test_defaults_of_a_model_that_is_opened_later() -> None:
    class Closed:
        is_open = False

        @property
        def generation_config(self) -> GenerationConfig:
            if not self.is_open:
                raise EngineClosedError("no model is loaded")
            return DEMO

    model: Any = Closed()
    read = ModelDefaults(model)
    shown = read()
    assert shown == defaults(GenerationConfig())
    model.is_open = True
    assert read() is shown
    assert shown == defaults(DEMO)
    assert ModelDefaults(cast("Any", object()))() == defaults(GenerationConfig())
