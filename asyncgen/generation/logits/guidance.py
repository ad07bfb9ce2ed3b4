"""Classifier-free guidance: away from what the model says without the prompt.

It knows of a model only that it can be called.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import (
    Definition,
    LogitsProcessor,
    Stage,
    check_ids,
    is_finite,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.generation.logits.base import BuildContext, Parameter


def guide(conditional: Tensor, unconditional: Tensor, scale: Parameter) -> Tensor:
    """Move from the unconditional scores towards and beyond the conditional ones.

    Args:
        conditional: [B, V].
        unconditional: [B, V].
        scale: 1.0 is the conditional scores, 0.0 the unconditional ones. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    return unconditional + (conditional - unconditional) * scale


class ClassifierFreeGuidanceLogitsProcessor(LogitsProcessor):
    """Guides with scores that came in one batch (`guide`; arXiv 2306.05284)."""

    def __init__(self, guidance_scale: float) -> None:
        """Check the scale.

        Args:
            guidance_scale: Above 1.

        Raises:
            InvalidRequestError: It is not.
        """
        if not isinstance(guidance_scale, int | float) or not guidance_scale > 1:
            raise InvalidRequestError("guidance_scale", guidance_scale, "must be a number above 1")
        self.guidance_scale = guidance_scale

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Join both halves.

        Args:
            input_ids: int64 [B, T].
            scores: [2 B, V]: the conditional rows, then the unconditional ones.

        Returns:
            [B, V].

        Raises:
            InvalidRequestError: There are not twice as many scores as sequences.
        """
        batch = input_ids.shape[0]
        if scores.shape[0] != 2 * batch:
            allowed = f"must have twice as many rows as the ids, {2 * batch}"
            raise InvalidRequestError("scores", tuple(scores.shape), allowed)
        return guide(scores[:batch], scores[batch:], self.guidance_scale)


class UnbatchedClassifierFreeGuidanceLogitsProcessor(LogitsProcessor):
    """Guides with scores that it computes itself (`guide`; Sanchez et al. 2023, arXiv 2306.17806).

    The other branch begins with a negative prompt, or with nothing but the prompt's last token,
    and gets every generated token. It runs the model once a step, with a cache of its own.
    """

    definition = Definition(
        # It remembers the other branch from its first call on, and holds a model to be shared.
        Stage.PROCESSOR,
        10,
        "guidance_scale",
        off=1,
        build=lambda _, scale, setting: _guided(scale, setting),
        for_sample=lambda own, _: copy.copy(own),
    )

    def __init__(
        self,
        guidance_scale: float,
        model: Callable[..., Any],
        unconditional_ids: Tensor | None = None,
        unconditional_attention_mask: Tensor | None = None,
        use_cache: bool | None = True,
        *,
        prompt_length: int | None = None,
    ) -> None:
        """Check the parameters.

        Args:
            guidance_scale: Any finite number; 1.0 is no guidance, below 1 towards the negative
                prompt.
            model: Called as ``model(input_ids, attention_mask=…, use_cache=…,
                past_key_values=…)``; returns ``logits`` [B, S, V] and ``past_key_values``.
            unconditional_ids: The negative prompt, int64 [B, S]; one row serves all.
            unconditional_attention_mask: [B, S], zero at padding.
            use_cache: Whether to keep keys and values between steps; otherwise all is computed
                anew.
            prompt_length: Tokens of the prompt. Those behind it at the first call were generated
                before, and the other branch gets them too; None if that is never so.

        Raises:
            InvalidRequestError: The scale is no number, or the shapes do not fit.
        """
        if not is_finite(guidance_scale):
            raise InvalidRequestError("guidance_scale", guidance_scale, "must be a finite number")
        mask = unconditional_attention_mask
        if unconditional_ids is not None:
            _check_prompt(unconditional_ids, mask)
        elif mask is not None:
            allowed = "needs the ids that it belongs to"
            raise InvalidRequestError("unconditional_attention_mask", tuple(mask.shape), allowed)
        self.guidance_scale = guidance_scale
        self.model = model
        self.use_cache = use_cache is not False
        self._given = unconditional_ids
        self._mask = mask
        self._prompt_length = prompt_length
        self._ids: Tensor | None = None
        self._cache: Any = None
        self._options = _options(model)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Guide the log-probabilities of the scores; ids are int64 [B, T], scores [B, V]."""
        conditional = scores.log_softmax(-1)
        if self.guidance_scale == 1:
            return conditional
        logits = self.get_unconditional_logits(input_ids)[:, -1]
        return guide(conditional, logits.to(scores).log_softmax(-1), self.guidance_scale)

    def get_unconditional_logits(self, input_ids: Tensor) -> Tensor:
        """Run the other branch one token on.

        Args:
            input_ids: Sequences so far, int64 [B, T]; their last tokens are new.

        Returns:
            Logits, [B, 1 or more, V]; the last position is the one that counts.
        """
        if self._ids is None:
            end = min(self._prompt_length or input_ids.shape[1], input_ids.shape[1])
            ids = input_ids[:, end - 1 : end] if self._given is None else self._given
            self._ids = ids.to(input_ids).expand(input_ids.shape[0], -1)
            if self._mask is not None:
                self._mask = self._mask.to(ids.device).expand(input_ids.shape[0], -1)
            self._append(input_ids[:, end:])
            return self._run(self._ids)
        newest = input_ids[:, -1:]
        self._append(newest)
        return self._run(newest if self.use_cache else self._ids)

    def _append(self, new: Tensor) -> None:
        """Let the other branch have generated tokens, int64 [B, any]."""
        assert self._ids is not None
        self._ids = torch.cat((self._ids, new), dim=1)
        if self._mask is not None:
            ones = torch.ones_like(new, dtype=self._mask.dtype)
            self._mask = torch.cat((self._mask, ones), dim=1)

    def _run(self, fresh: Tensor) -> Tensor:
        assert self._ids is not None
        mask = torch.ones_like(self._ids) if self._mask is None else self._mask
        options = dict(self._options)
        if "position_ids" in options:
            start, end = self._ids.shape[1] - fresh.shape[1], self._ids.shape[1]
            options["position_ids"] = torch.arange(
                start, end, dtype=torch.int64, device=fresh.device
            )[None]
        output = self.model(
            fresh,
            attention_mask=mask,
            use_cache=self.use_cache,
            past_key_values=self._cache,
            **options,
        )
        if self.use_cache:
            self._cache = output.past_key_values
        return output.logits


def _guided(scale: Any, setting: BuildContext) -> LogitsProcessor:
    allowed = "needs a decoder-only model that can be called"
    guidance = setting.needed(setting.guidance, "guidance_scale", allowed)
    return UnbatchedClassifierFreeGuidanceLogitsProcessor(
        scale,
        guidance.model,
        guidance.negative_prompt_ids,
        guidance.negative_prompt_attention_mask,
        setting.config.use_cache,
        prompt_length=setting.prompt_length,
    )


def _options(model: Callable[..., Any]) -> dict[str, Any]:
    """Arguments that spare work or settle positions, where the model knows them."""
    known = inspect.signature(getattr(model, "forward", model)).parameters
    # Positions count over padding as well, as those of a model that is called without any do.
    options = {"logits_to_keep": 1, "position_ids": None}
    return {name: value for name, value in options.items() if name in known}


def _check_prompt(ids: Tensor, mask: Tensor | None) -> None:
    check_ids("negative_prompt_ids", ids)
    if ids.dim() != 2 or ids.shape[1] == 0:
        value = f"{tuple(ids.shape)} {ids.dtype}"
        allowed = "must be integers of shape [batch, length], at least one token long"
        raise InvalidRequestError("negative_prompt_ids", value, allowed)
    if mask is not None and getattr(mask, "shape", None) != ids.shape:
        allowed = f"must have the shape of the ids, {tuple(ids.shape)}"
        given = tuple(getattr(mask, "shape", ())) or mask
        raise InvalidRequestError("negative_prompt_attention_mask", given, allowed)
