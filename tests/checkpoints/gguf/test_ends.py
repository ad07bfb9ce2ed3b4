"""Ends of generation of GGUF files: by the texts of tokens, as in llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncgen
from asyncgen.checkpoints.gguf.ends import end_tokens
from asyncgen.checkpoints.gguf.gguf_file import open_gguf
from tests.cases import for_each
from tests.checkpoints.gguf.making import write_gguf

if TYPE_CHECKING:
    from pathlib import Path

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

GPT_OSS = ["<|return|>", "<|end|>", "<|call|>", "<|channel|>", "<|start|>", "<|message|>"]
SOLAR_OPEN = ["<|end|>", "<|flush|>", "<|calls|>", "<|begin|>", "<|think|>"]
PHI = ["<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"]
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
GEMMA_4 = ["<pad>", "<eos>", "<bos>", "<turn|>", "<|turn>", "<|tool_response>", "</s>"]


def write(folder: Path, tokens: list[str], kind: int = CONTROL, **more: Any) -> Path:
    """Write a file of these tokens, with ``a`` and ``aa`` behind them."""
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, "a", "aa"],
        "tokenizer.ggml.token_type": [kind] * len(tokens) + [NORMAL] * 2,
        "tokenizer.ggml.merges": ["a a"],
    }
    for key, value in more.items():
        metadata[f"tokenizer.ggml.{key}"] = value
    return write_gguf(folder / "model.gguf", metadata, {})


@for_each(
    ("tokens", "named", "ends"),
    [
        (GPT_OSS, {"eos_token_id": 0}, ["<|return|>", "<|call|>"]),
        (SOLAR_OPEN, {"eos_token_id": 1}, ["<|flush|>", "<|calls|>"]),
        (GPT_OSS, {"eos_token_id": 1}, ["<|return|>", "<|call|>"]),
        (PHI, {"eos_token_id": 0}, ["<|endoftext|>", "<|end|>"]),
        (PHI, {"eos_token_id": 2}, ["<|user|>", "<|endoftext|>", "<|end|>"]),
        (CHATML, {"eos_token_id": 2}, ["<|im_end|>", "<|endoftext|>"]),
        (CHATML, {}, ["<|endoftext|>", "<|im_end|>"]),
        (GEMMA_4, {"eos_token_id": 1}, ["<eos>", "<turn|>", "<|tool_response>"]),
        (["<s>", "</s>"], {}, ["</s>"]),
        (["[BOS]", "[EOS]", "[EOT]", "[PAD]"], {"eos_token_id": 1}, ["[EOS]", "[EOT]", "[PAD]"]),
        (["]~!b[", "[e~["], {}, ["[e~["]),
        (["x", "y", "z"], {"eos_token_id": 1, "eot_token_id": 2}, ["y", "z"]),
        (
            ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"],
            {"fim_pad_token_id": 1},
            ["<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"],
        ),
    ],
)
def test_ends_are_those_of_llama_cpp_whatever_their_type(
    tmp_path: Path, tokens: list[str], named: dict[str, int], ends: list[str]
) -> None:
    for kind in (NORMAL, CONTROL, USER_DEFINED):
        found = end_tokens(open_gguf(write(tmp_path, tokens, kind, **named)).metadata)
        assert [tokens[token] for token in found] == ends, (tokens, kind)


@for_each("kind", [NORMAL, CONTROL, USER_DEFINED])
def test_an_end_of_any_type_is_one_token_of_a_prompt_and_hidden_in_a_text(
    tmp_path: Path, kind: int
) -> None:
    tokenizer = asyncgen.load_tokenizer(write(tmp_path, CHATML, kind))
    assert tokenizer.encode_ids("a<|im_end|>a", add_special_tokens=False) == [3, 2, 3]
    assert tokenizer.decode([3, 2, 3], skip_special_tokens=True) == "aa"
