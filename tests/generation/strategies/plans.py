"""Plans over a table model, for tests that drive a strategy step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.generate.plan_parts import make_plan
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteriaList,
)
from asyncgen.generation.stopping.stop_checks import StopChecks
from asyncgen.generation.strategies.token_by_token import multinomial_draw
from tests.doubles.models import EOS, PAD, TableModel

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from asyncgen.generation.strategies.step import Plan


def plan_of(
    model: TableModel,
    prompts: list[list[int]],
    *,
    new_tokens: int,
    mask: torch.Tensor | None = None,
    criteria: tuple[Callable[..., Any], ...] = (),
    processors: LogitsProcessorList | None = None,
    fields: dict[str, Any] | None = None,
    **options: Any,
) -> Plan:
    """Lay prompts of one length out, with an end by length and by end-of-sequence token.

    ``fields`` are those of the configuration, ``options`` those of `make_plan`.
    """
    limits: list[Any] = [
        MaxLengthCriteria(len(prompts[0]) + new_tokens),
        EosTokenCriteria(EOS),
        *criteria,
    ]
    return make_plan(
        model,
        prompts,
        config=GenerationConfig(**{"pad_token_id": PAD, "eos_token_id": EOS} | (fields or {})),
        processors=LogitsProcessorList() if processors is None else processors,
        stop_checks=StopChecks(StoppingCriteriaList(limits)),
        draw=multinomial_draw,
        attention_mask=mask,
        **options,
    )
