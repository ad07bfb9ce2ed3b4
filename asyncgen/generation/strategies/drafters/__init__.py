"""Drafters: what guesses tokens ahead of the model that decides. One kind a file."""

from asyncgen.generation.strategies.drafters.assistant import AssistantDrafter
from asyncgen.generation.strategies.drafters.drafter import (
    Confidence,
    Drafter,
    Drafting,
    Proposal,
    Schedule,
)
from asyncgen.generation.strategies.drafters.lookup import LookupDrafter
from asyncgen.generation.strategies.drafters.universal import UniversalDrafter

__all__ = [
    "AssistantDrafter",
    "Confidence",
    "Drafter",
    "Drafting",
    "LookupDrafter",
    "Proposal",
    "Schedule",
    "UniversalDrafter",
]
