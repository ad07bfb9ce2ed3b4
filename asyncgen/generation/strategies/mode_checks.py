"""Check the combinations of each strategy before any work, in one branch for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen.errors import InvalidRequestError
from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.plans.state_plan import keeps_states
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.generate.plan_parts import check_cache
from asyncgen.generation.strategies.contrastive import check_contrastive
from asyncgen.generation.strategies.dola import early_layers
from asyncgen.generation.strategies.drafters.drafting import Assistance, check_assistance

if TYPE_CHECKING:
    from asyncgen.cache.caches import Cache
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.generate.plan_parts import GenerativeModel


@dataclass(frozen=True, slots=True)
class StrategyInputs:
    """Model and inputs of a strategy.

    Attributes:
        model: The model that decides.
        config: Complete configuration.
        rows: Rows of the batch, samples of one prompt included.
        cache: The cache to continue, if the caller brings one.
        assistance: Who helps; ``None`` where that is not known yet.
    """

    model: GenerativeModel
    config: GenerationConfig
    rows: int
    cache: Cache | None = None
    assistance: Assistance | None = None


def check_mode(mode: GenerationMode, situation: StrategyInputs) -> None:
    """Refuse what a strategy cannot do.

    Args:
        mode: The strategy.
        situation: What it would run on.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    on, own = situation, situation.model.core.config
    check_cache(on.model, on.config)
    _check_states(mode, on)
    if mode is GenerationMode.ASSISTED_GENERATION and on.assistance is not None:
        check_assistance(on.model, on.config, on.assistance, rows=on.rows, cache=on.cache)
    elif mode is GenerationMode.CONTRASTIVE_SEARCH:
        check_contrastive(on.config, own.vocab_size, on.cache)
    elif mode is GenerationMode.DOLA_GENERATION:
        wanted = on.config.dola_layers
        if on.model.config.is_encoder_decoder:
            allowed = "works with decoder-only models; leave it out"
            raise InvalidRequestError("dola_layers", wanted, allowed)
        early_layers(wanted, own.num_hidden_layers, tied=own.tie_word_embeddings)


def _check_states(mode: GenerationMode, on: StrategyInputs) -> None:
    """Refuse what the reference refuses of models with states.

    Contrastive search takes tokens back, and a state does not tell what it was before. DoLa takes
    none, and some families allow it.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    names = {
        GenerationMode.CONTRASTIVE_SEARCH: ("penalty_alpha", "which take no token back"),
        GenerationMode.DOLA_GENERATION: ("dola_layers", "for which there is no DoLa"),
    }
    if mode not in names or not keeps_states(on.model.core.config):
        return
    (name, why), model_type = names[mode], on.model.config.model_type
    if mode is GenerationMode.DOLA_GENERATION and FAMILIES[model_type].allows_dola:
        return
    raise InvalidRequestError(
        name,
        getattr(on.config, name),
        f"the layers of a {model_type} model keep states, {why}; leave it out",
    )
