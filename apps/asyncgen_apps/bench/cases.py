"""List the decoding strategies that ``bench strategies`` compares.

Each row has the parameters of a strategy, and whether transformers still has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


Draft: TypeAlias = Literal["draft", "foreign"]
"""Model that drafts: one with the same tokenizer, or one with another."""


@dataclass(frozen=True, slots=True)
class Case:
    """Decoding strategy.

    Attributes:
        name: Name in tables and on the command line.
        parameters: Arguments of `generate`, the same on both sides.
        theirs: True if transformers has it; otherwise it is compared with our greedy decoding.
        draft: The model that drafts, if one does.
        is_grounded: True if the prompt contains the answer, which takes a trained model.
        wants_tokenizer: True if it takes ``tokenizer``.
    """

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    theirs: bool = True
    draft: Draft | None = None
    is_grounded: bool = False
    wants_tokenizer: bool = False


GREEDY = Case("greedy")
GROUNDED_GREEDY = Case("greedy, grounded", is_grounded=True)
_BEAMS = {"num_beams": 4}
_LOOKUP = {"prompt_lookup_num_tokens": 10}

CASES = (
    GREEDY,
    Case("sampling", {"do_sample": True, "temperature": 0.8, "top_p": 0.9}),
    Case("beam search", _BEAMS),
    Case("beam sampling", {**_BEAMS, "do_sample": True}),
    Case("assisted", draft="draft"),
    Case("assisted sampling", {"do_sample": True}, draft="draft"),
    Case("other tokenizer", draft="foreign", wants_tokenizer=True),
    Case("early exit", {"assistant_early_exit": 2}),
    Case("prompt lookup", _LOOKUP),
    Case("contrastive", {"penalty_alpha": 0.6, "top_k": 4}, theirs=False),
    Case("dola", {"dola_layers": "high"}, theirs=False),
    Case(
        "diverse beams",
        {**_BEAMS, "num_beam_groups": 2, "diversity_penalty": 1.0},
        theirs=False,
    ),
    Case("constrained beams", {**_BEAMS, "force_words_ids": [[700], [701, 702]]}, theirs=False),
    Case("token healing", {"token_healing": True}, theirs=False, wants_tokenizer=True),
    GROUNDED_GREEDY,
    Case("prompt lookup, grounded", _LOOKUP, is_grounded=True),
)
"""Every strategy, in the order of the table. The grounded ones run on the bundled model."""
