"""Find the tokens of a GGUF file that end a generation.

A file names at most three of them, so the texts of tokens decide, as in llama.cpp
(``special_eog_ids`` in its ``llama-vocab.cpp``): a token with one of these texts ends a turn,
whatever type the file gives it, and with or without a chat template.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.checkpoints.gguf.gguf_file import Metadata

_NAMED: Final = ("eos", "eot", "eom")
"""Roles of ends in the metadata."""

_TURN_ENDS: Final = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",  # gpt-oss
        "<|call|>",  # gpt-oss
        "<|calls|>",  # Solar Open
        "<|flush|>",  # Solar Open
        "<end_of_turn>",
        "<turn|>",  # Gemma 4
        "<|tool_response>",  # Gemma 4
        "<eos>",
        "</s>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",  # Kimi K2
        "[EOS]",  # Kimi K2
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "[e~[",  # MiniMax M2
        "<|END_OF_TURN_TOKEN|>",
        "[|endofturn|]",
    }
)
"""Texts of tokens that end a turn."""

_INFILL: Final = {
    "fim_pad": frozenset({"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}),
    "fim_rep": frozenset({"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}),
    "fim_sep": frozenset({"<|file_sep|>"}),
}
"""Roles of tokens that end a completion of code, with their texts for files that name none."""

_MESSAGE_END: Final = "<|end|>"
"""Ends a message, and not the turn, where another token ends a call and another one the turn."""
_IS_CALL: Final = frozenset({"<|call|>", "<|calls|>"})
_IS_FINAL: Final = frozenset({"<|return|>", "<|flush|>"})


def end_tokens(metadata: Metadata) -> list[int]:
    """Return the tokens that end a generation: first those that the file names.

    Args:
        metadata: Metadata of a file.

    Raises:
        ModelLoadError: A key is of the wrong type.
    """
    named, infill = (
        {role: metadata.whole(f"tokenizer.ggml.{role}_token_id") for role in roles}
        for roles in (_NAMED, _INFILL)
    )
    texts = metadata.texts("tokenizer.ggml.tokens") or []
    wanted = _TURN_ENDS.union(*(_INFILL[role] for role, token in infill.items() if token is None))
    by_text = [token for token, text in enumerate(texts) if text in wanted]
    found = dict.fromkeys([*named.values(), *infill.values(), *by_text])
    going_on = _going_on(texts)
    return [
        token
        for token in found
        if token is not None and (token >= len(texts) or texts[token] not in going_on)
    ]


def control_texts(texts: Sequence[str]) -> frozenset[str]:
    """Return texts of tokens that are control tokens, whatever type a file gives them.

    Args:
        texts: All tokens of a file.
    """
    return _TURN_ENDS.union(*_INFILL.values()) - (_going_on(texts) - {_MESSAGE_END})


def _going_on(texts: Sequence[str]) -> frozenset[str]:
    """Return the texts of the list that end nothing in this vocabulary."""
    there = _TURN_ENDS.intersection(texts)
    found = set()
    if there & _IS_CALL and there & _IS_FINAL:
        found.add(_MESSAGE_END)
    if "<|tool_response>" in there:
        found.add("</s>")
    return frozenset(found)
