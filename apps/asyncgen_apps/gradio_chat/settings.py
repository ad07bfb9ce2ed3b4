"""Translate the values of the settings panel into stream parameters.

What stays at the model's own default is not sent, so that the model decides; what the strategy has
no use for is hidden, and not sent either. Knows no widgets.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from asyncgen import EngineClosedError, GenerationConfig, InvalidRequestError
from asyncgen_apps.gradio_chat.fields import AIDED, FIELDS, SAMPLING, Field, Values, draws
from asyncgen_apps.gradio_chat.word_tokens import banned, required

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen import StreamParams
    from asyncgen_apps.gradio_chat.model import ChatModel
    from asyncgen_apps.gradio_chat.word_tokens import Encode


EARLY_STOPPING: Mapping[str, bool | str] = {
    "unlikely": False,
    "enough": True,
    "impossible": "never",
}
ALTERNATIVES = 5
"""Alternatives of each token that are recorded unless another number is chosen."""


def model_strategy(config: GenerationConfig) -> str:
    """Say which strategy the model's own defaults ask for."""
    if (config.num_beams or 1) > 1:
        if (config.num_beam_groups or 1) > 1:
            return "diverse"
        return "beam_sample" if config.do_sample else "beams"
    if config.do_sample:
        return "sampling"
    return "contrastive" if config.penalty_alpha and (config.top_k or 0) > 1 else "greedy"


def defaults(config: GenerationConfig) -> Values:
    """Return the value that each field shows before anything is chosen."""
    shown: Values = {}
    for each in FIELDS:
        name = each.name if each.parameter is None else each.parameter
        own = getattr(config, name, None) if name else None
        shown[each.name] = each.neutral if own is None else own
    early = {value: name for name, value in EARLY_STOPPING.items()}
    shown["early_stopping"] = early.get(config.early_stopping or False, "unlikely")
    shown["strategy"] = model_strategy(config)
    shown["stop"] = "\n".join(_strings(config.stop_strings))
    shown["watermark"] = config.watermarking_config is not None
    if config.exponential_decay_length_penalty is not None:
        shown["decay_start"], shown["decay_factor"] = config.exponential_decay_length_penalty
    shown["system"] = ""
    shown["top_logprobs"] = ALTERNATIVES
    # A field that asks for a strategy shows a value with which that strategy works.
    for name in ("num_beams", "num_beam_groups", "penalty_alpha", "contrastive_k", "dola_layers"):
        field = next(each for each in FIELDS if each.name == name)
        if wrong(field, shown[name]) is not None:
            shown[name] = field.neutral
    return shown


class ModelDefaults:
    """The values of :func:`defaults`, of a model that may be opened after its page is drawn."""

    def __init__(self, model: ChatModel) -> None:
        """Know the model; until it is open, the defaults are those of no model in particular."""
        self._model = model
        self._values = defaults(GenerationConfig())
        self._is_read = False

    def __call__(self) -> Values:
        """Return the values: one dictionary, which changes when the model has been opened."""
        if not self._is_read:
            with suppress(EngineClosedError):
                # A foreign model object may have none.
                own = getattr(self._model, "generation_config", None)
                self._values.update(defaults(own or GenerationConfig()))
                self._is_read = True
        return self._values


def checked(values: Mapping[str, Any]) -> Values:
    """Return the values that a field of their name could show; a browser may have kept anything."""
    fields = {each.name: each for each in FIELDS}
    return {
        name: value
        for name, value in values.items()
        if name in fields and wrong(fields[name], value) is None
    }


def check(values: Mapping[str, Any], shown: Mapping[str, Any]) -> None:
    """Check what stands in the panel, as far as it is used; an empty field is the default.

    Args:
        values: Values of the widgets, by field.
        shown: The model's defaults, which may be outside of what a field offers.

    Raises:
        InvalidRequestError: Names a field with a value that it does not take.
    """
    for name in ("strategy", "draw"):  # they say which fields are used
        _check(next(each for each in FIELDS if each.name == name), values[name])
    for each in FIELDS:
        value = values[each.name]
        if value not in (None, shown[each.name]) and each.used_by(values):
            _check(each, value)


def _check(field: Field, value: Any) -> None:
    reason = wrong(field, value)
    if reason is not None:
        raise InvalidRequestError(field.title, value, reason)


def wrong(field: Field, value: Any) -> str | None:
    """Say what a value must be, unless a field takes it."""
    if field.kind == "lines":
        return None if isinstance(value, str) else "must be a text"
    if field.kind == "flag":
        return None if isinstance(value, bool) else "must be True or False"
    if field.kind == "choice":
        is_one = isinstance(value, str) and value in field.choices
        return None if is_one else f"must be one of {', '.join(field.choices)}"
    if value is None and field.neutral is None:
        return None
    reason: str | None = field.range(value)
    return reason


def chosen(values: Mapping[str, Any], shown: Mapping[str, Any]) -> Values:
    """Return what differs from the model's defaults."""
    return {
        name: value
        for name, value in values.items()
        if name in shown and value != shown[name] and not (value == "" and shown[name] is None)
    }


def stream_params(
    values: Mapping[str, Any],
    shown: Mapping[str, Any],
    encode: Encode,
    assistant: object | None = None,
) -> StreamParams:
    """Return the parameters of ``AsyncLLM.stream`` for what stands in the panel.

    Args:
        values: Values of the widgets, by field.
        shown: The model's defaults, of :func:`defaults`.
        encode: Turns a text into token ids, without special tokens.
        assistant: The draft model that the strategy of this name uses.
    """
    differing = {
        each.name: values[each.name]
        for each in FIELDS
        if values[each.name] not in (None, shown[each.name]) and each.used_by(values)
    }
    params = _strategy_params(values, shown, assistant)
    for each in FIELDS:
        if each.parameter is None and each.name in differing:
            params.setdefault(each.name, differing[each.name])
    if "early_stopping" in differing:
        params["early_stopping"] = EARLY_STOPPING[differing["early_stopping"]]
    if "stop" in differing:
        params["stop"] = _lines(differing["stop"])
    if {"decay_start", "decay_factor"} & differing.keys():
        pair = (values["decay_start"] or 0, values["decay_factor"])
        params["exponential_decay_length_penalty"] = pair
    if "banned_words" in differing:
        params["bad_words_ids"] = banned(_lines(differing["banned_words"]), encode)
    if "required_words" in differing:
        params["force_words_ids"] = required(_lines(differing["required_words"]), encode)
    if differing.get("watermark"):
        from asyncgen import WatermarkingConfig  # brings torch, which is loaded by now

        params["watermarking_config"] = WatermarkingConfig()
    if draws(values) and values["temperature"] == 0:
        # Nothing is drawn then, whatever else stands under sampling.
        sampling = {each.name for each in FIELDS if each.group == SAMPLING}
        params = {name: value for name, value in params.items() if name not in sampling}
        params["do_sample"] = False
    params["top_logprobs"] = values["top_logprobs"] or None
    given = {name: value for name, value in params.items() if value not in (None, [])}
    return cast("StreamParams", given)


_MAKING: Mapping[str, tuple[str, ...]] = {
    "beams": ("num_beams",),
    "beam_sample": ("num_beams",),
    "diverse": ("num_beams", "num_beam_groups", "diversity_penalty"),
    "contrastive": ("penalty_alpha", "contrastive_k"),
    "lookup": ("prompt_lookup_num_tokens",),
    "early_exit": ("assistant_early_exit",),
    "dola": ("dola_layers",),
}
"""The fields that ask for a strategy: sent also where they show the default."""

_LEAVING: Mapping[str, Values] = {
    "beams": {"num_beams": 1},
    "beam_sample": {"num_beams": 1},
    "diverse": {"num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0},
    "contrastive": {"penalty_alpha": 0.0},
}
"""What switches off a strategy that is the model's own."""


def _strategy_params(
    values: Mapping[str, Any], shown: Mapping[str, Any], assistant: object | None
) -> Values:
    """Return what makes the strategy; nothing for the model's own, as it is."""
    strategy, own = values["strategy"], shown["strategy"]
    making = _MAKING.get(strategy, ())
    if strategy == own and all(values[name] == shown[name] for name in making):
        return {}
    params = dict(_LEAVING.get(own, {})) if strategy != own else {}
    parameters = {each.name: each.parameter or each.name for each in FIELDS}
    for name in making:
        # An empty field is the default, as everywhere; without it another strategy would answer.
        value = shown[name] if values[name] is None else values[name]
        params[parameters[name]] = value
    drawn = draws(values)
    if strategy not in AIDED or drawn != shown["draw"]:
        params["do_sample"] = drawn
    if strategy == "assistant":
        params["assistant_model"] = assistant
    return params


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def _strings(value: str | list[str] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)
