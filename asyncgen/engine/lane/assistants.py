"""Draft models of the engine: loaded on the decode thread when a request first names one, and kept.

A model that is named twice is loaded once. Loading computes nothing, but the thread does nothing
else meanwhile. A request that names a loaded model object does not wait.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from asyncgen.generation.strategies.drafters.drafting import Assistance

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.generation.generate.resolved_call import GenerativeModel
    from asyncgen.text.tokenizer import Tokenizer


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
        model = _loaded(params.assistant_model, self._models, self._load_model)
        other = _loaded(params.assistant_tokenizer, self._tokenizers, self._load_tokenizer)
        return Assistance(model, None if other is None else tokenizer, other)


def _loaded(source: Any, kept: dict[str, Any], load: Callable[[Any], Any]) -> Any:
    """What a name stands for, loaded if it is not kept yet; an object is taken as it is."""
    if not isinstance(source, str | os.PathLike):
        return source
    name = os.fspath(source)
    if name not in kept:
        kept[name] = load(source)
    return kept[name]
