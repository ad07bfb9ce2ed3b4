"""Draft models of the engine: loaded on the decode thread when a request first names one, and kept.

A model that is named twice is loaded once. Loading computes nothing, but the thread does nothing
else meanwhile. A request that names a loaded model object does not wait.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.fields import DRAFTING
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.strategies.drafters.drafting import Assistance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.generate.plan import GenerativeModel
    from asyncgen.tokenizer import Tokenizer

__all__ = ["Assistants", "refuse_idle_help"]

_ONLY = {
    "penalty_alpha": GenerationMode.CONTRASTIVE_SEARCH,
    "low_memory": GenerationMode.CONTRASTIVE_SEARCH,
    "dola_layers": GenerationMode.DOLA_GENERATION,
}
"""Fields that mean something to one strategy alone."""


class Assistants:
    """Draft models and their tokenizers by the name they were asked for with."""

    def __init__(
        self,
        load_model: Callable[[Any], GenerativeModel],
        load_tokenizer: Callable[[Any], Tokenizer],
    ) -> None:
        """Begin with none.

        Args:
            load_model: Loads from a folder or a hub id.
            load_tokenizer: The same for a tokenizer.
        """
        self._load_model = load_model
        self._load_tokenizer = load_tokenizer
        self._models: dict[str, GenerativeModel] = {}
        self._tokenizers: dict[str, Tokenizer] = {}

    def assistance(self, params: RequestParams, tokenizer: Tokenizer | None) -> Assistance:
        """What a request asks for, loaded. Call it on the decode thread.

        Args:
            params: Of the request.
            tokenizer: The engine's own.

        Raises:
            ModelLoadError: A checkpoint or a tokenizer cannot be read.
        """
        model: Any = params.assistant_model
        if isinstance(model, str | os.PathLike):
            name = os.fspath(model)
            if name not in self._models:
                self._models[name] = self._load_model(model)
            model = self._models[name]
        other: Any = params.assistant_tokenizer
        if isinstance(other, str | os.PathLike):
            name = os.fspath(other)
            if name not in self._tokenizers:
                self._tokenizers[name] = self._load_tokenizer(other)
            other = self._tokenizers[name]
        return Assistance(model, None if other is None else tokenizer, other)


def refuse_idle_help(
    config: GenerationConfig,
    arguments: Mapping[str, Any],
    given: Mapping[str, Any],
    mode: GenerationMode,
) -> None:
    """Refuse help that would not be used, and help of two kinds.

    Args:
        config: The request's.
        arguments: Arguments of ``generate`` that are no fields, as far as given.
        given: Fields that were given.
        mode: The strategy.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    helpers = {
        "assistant_model": arguments.get("assistant_model"),
        "assistant_early_exit": config.assistant_early_exit,
        "prompt_lookup_num_tokens": config.prompt_lookup_num_tokens,
    }
    asked = [name for name, value in helpers.items() if value is not None]
    if asked and mode is not GenerationMode.ASSISTED_GENERATION:
        name = asked[0]
        raise InvalidRequestError(
            name, helpers[name], f"has no effect in {mode.value}; leave it out"
        )
    if len(asked) > 1:
        raise InvalidRequestError(
            asked[1], helpers[asked[1]], f"`{asked[0]}` drafts already; give one of them"
        )
    if "assistant_tokenizer" in arguments and "assistant_model" not in asked:
        raise InvalidRequestError(
            "assistant_tokenizer", arguments["assistant_tokenizer"], "needs `assistant_model`"
        )
    for name, own in _ONLY.items():
        if given.get(name) not in (None, False, 0) and mode is not own:
            raise InvalidRequestError(name, given[name], f"has no effect in {mode.value}")
    if not asked or "prompt_lookup_num_tokens" in asked:
        for name in DRAFTING:
            if name in given:
                allowed = "needs `assistant_model` or `assistant_early_exit`"
                raise InvalidRequestError(name, given[name], allowed)
