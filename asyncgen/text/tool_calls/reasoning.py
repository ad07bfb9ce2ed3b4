"""How families of models mark what they think before they answer."""

from __future__ import annotations

from asyncgen.text.tool_calls.formats import ReasoningFormat

HARMONY = ReasoningFormat(
    name="harmony",
    begin="<|channel|>analysis<|message|>",
    end="<|end|>",
    signs=("<|channel|>analysis",),
    forced="<|end|><|start|>assistant<|channel|>final<|message|>",
    markers=("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>")
    + ("<|constrain|>",),
)
"""gpt-oss: a channel of its own."""

GEMMA = ReasoningFormat("gemma", "<|channel>thought\n", "<channel|>", ("<|channel>thought",))
MISTRAL = ReasoningFormat("mistral", "[THINK]", "[/THINK]", ("[THINK]",))
SEED = ReasoningFormat("seed", "<seed:think>", "</seed:think>", ("<seed:think>",))
COHERE = ReasoningFormat(
    "cohere", "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_THINKING|>",)
)
THINK = ReasoningFormat("think", "<think>", "</think>", ("<think>", "</think>"))
"""Qwen 3, DeepSeek R1, GLM 4.5, SmolLM 3, Granite, Nemotron and most others."""

REASONING_FORMATS = (HARMONY, GEMMA, MISTRAL, SEED, COHERE, THINK)
