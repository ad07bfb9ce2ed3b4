"""Resolve the decoding strategy of a configuration.

One pure function over a configuration; knows nothing of models or of how a strategy works.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Any

_logger = logging.getLogger("asyncgen.generation")


class GenerationMode(StrEnum):
    """The decoding strategies that `generate` knows."""

    CONTRASTIVE_SEARCH = "contrastive_search"
    GREEDY_SEARCH = "greedy_search"
    SAMPLE = "sample"
    ASSISTED_GENERATION = "assisted_generation"
    DOLA_GENERATION = "dola_generation"
    BEAM_SEARCH = "beam_search"
    BEAM_SAMPLE = "beam_sample"
    CONSTRAINED_BEAM_SEARCH = "constrained_beam_search"
    GROUP_BEAM_SEARCH = "group_beam_search"


_SPEED_UPS = {GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE}


def generation_mode(config: Any, assistant_model: object | None = None) -> GenerationMode:
    """Resolve the strategy.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.
        assistant_model: A draft model, if there is one.

    Returns:
        The strategy. Assisted generation and DoLa replace greedy search and sampling only; asked
        for on top of another strategy they are ignored, with a warning.
    """
    base = base_mode(config)
    assisted = assistant_model is not None or any(
        value is not None
        for value in (config.prompt_lookup_num_tokens, config.assistant_early_exit)
    )
    for asked, mode in (
        (assisted or bool(config.use_mtp), GenerationMode.ASSISTED_GENERATION),
        (config.dola_layers is not None, GenerationMode.DOLA_GENERATION),
    ):
        if asked and base in _SPEED_UPS:
            return mode
        if asked:
            _logger.warning(
                "%s works with greedy search and sampling only; it is ignored in %s",
                mode.value,
                base.value,
            )
    return base


def uses_beams(config: Any) -> bool:
    """Tell whether several beginnings of one prompt are weighed against each other.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.
    """
    return (config.num_beams or 1) > 1


def base_mode(config: Any) -> GenerationMode:
    """Resolve the strategy, drafts and contrasted layers aside.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.
    """
    if config.constraints is not None or config.force_words_ids is not None:
        return GenerationMode.CONSTRAINED_BEAM_SEARCH
    if config.num_beams is None or config.num_beams == 1:
        if config.do_sample is True:
            return GenerationMode.SAMPLE
        if (config.top_k or 0) > 1 and (config.penalty_alpha or 0) > 0:
            return GenerationMode.CONTRASTIVE_SEARCH
        return GenerationMode.GREEDY_SEARCH
    if (config.num_beam_groups or 1) > 1:
        return GenerationMode.GROUP_BEAM_SEARCH
    return GenerationMode.BEAM_SAMPLE if config.do_sample is True else GenerationMode.BEAM_SEARCH
