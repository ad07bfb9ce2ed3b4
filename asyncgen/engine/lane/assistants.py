"""Load draft models on the decode thread when a request first names one, and keep them.

All streams wait while a draft model loads. A request that passes a loaded model object does not
wait.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from asyncgen.generation.strategies.drafters.drafting import Assistance

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.generation.generate.plan_parts import GenerativeModel
    from asyncgen.text.tokenizer import Tokenizer


class Assistants:
    """Draft models and their tokenizers, by the name in the request."""

    def __init__(
        self,
        load_model: Callable[[Any], GenerativeModel],
        load_tokenizer: Callable[[Any], Tokenizer],
    ) -> None:
        """Start without models.

        Args:
            load_model: Loads a model from a folder or a hub id.
            load_tokenizer: Loads a tokenizer likewise.
        """
        self._load_model = load_model
        self._load_tokenizer = load_tokenizer
        self._models: dict[str, GenerativeModel] = {}
        self._tokenizers: dict[str, Tokenizer] = {}

    def assistance(self, params: RequestParams, tokenizer: Tokenizer | None) -> Assistance:
        """Return the draft model of a request, loaded. Call it on the decode thread.

        Args:
            params: Parameters of the request.
            tokenizer: Tokenizer of the engine.

        Raises:
            ModelLoadError: A checkpoint or a tokenizer cannot be read.
        """
        model = _loaded(params.assistant_model, self._models, self._load_model)
        other = _loaded(params.assistant_tokenizer, self._tokenizers, self._load_tokenizer)
        return Assistance(model, None if other is None else tokenizer, other)


def _loaded(source: Any, kept: dict[str, Any], load: Callable[[Any], Any]) -> Any:
    """Return the object of a name, loaded at the first use; an object is returned as it is."""
    if not isinstance(source, str | os.PathLike):
        return source
    name = os.fspath(source)
    if name not in kept:
        kept[name] = load(source)
    return kept[name]
