"""Drafters: what guesses tokens ahead of the model that decides. One kind a file."""

from asyncgen.generation.strategies.drafters.assistant import AssistantDrafter
from asyncgen.generation.strategies.drafters.drafter import Confidence, Schedule
from asyncgen.generation.strategies.drafters.lookup import LookupDrafter
from asyncgen.generation.strategies.drafters.universal import UniversalDrafter
from asyncgen.generation.strategies.step import Drafter, Drafting, Proposal

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
