"""A model whose logits are looked up, and a tokenizer whose tokens are bytes.

No matrix product is involved, so the logits of a row are the same bit for bit whatever stands
beside it, and a test decides how many forward passes happen, and what happens in them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from asyncgen.families.config import ModelConfig
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.generate.mixin import GenerationMixin
from asyncgen.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.models.attention.dense import AttentionContext

    Hook = Callable[[torch.Tensor, torch.Tensor], object]

EOS, PAD, START, END = 256, 257, 258, 259
"""Special tokens of :func:`byte_tokenizer`; ids below are the bytes themselves."""

VOCABULARY = 260
PATIENCE = 60.0
"""Seconds after which a test that waits for a thread has failed: only one that hangs waits so long,
and machines that run tests are slow at times, or stand still."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<start>{{ message['role'] }}:{{ message['content'] }}<end>"
    "{% endfor %}{% if add_generation_prompt %}<start>assistant:{% endif %}"
)


def byte_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE) -> Tokenizer:
    """Make a tokenizer with one token a byte, four special tokens, and a chat template."""
    # The byte-level alphabet spells each byte as one printable character; order it by byte.
    alphabet = _byte_alphabet()
    backend = Backend(models.BPE(vocab={char: byte for byte, char in alphabet.items()}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<eos>", "<pad>", "<start>", "<end>")]
    )
    return Tokenizer(
        backend,
        special_tokens={"eos_token": "<eos>", "pad_token": "<pad>"},
        extra_special_tokens=["<start>", "<end>"],
        chat_template=chat_template,
    )


def _byte_alphabet() -> dict[int, str]:
    """The character that the byte-level pre-tokenizer writes for each byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {
        byte: chr(256 + place) for place, byte in enumerate(hidden)
    }


class Gate:
    """A hook that lets exactly as many forward passes through as the test allows.

    Attributes:
        arrived: Forward passes that were begun, those that wait included.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._allowed = 0
        self._is_open = False
        self.arrived = 0

    def allow(self, count: int = 1) -> None:
        """Let so many more forward passes through."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    def open(self) -> None:
        """Let everything through from now on."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def wait_arrived(self, count: int) -> None:
        """Wait until so many forward passes were begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.arrived >= count, PATIENCE), self.arrived

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> None:
        with self._changed:
            self.arrived += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._is_open or self._allowed > 0, PATIENCE)
            self._allowed -= 1


class TableCore:
    """Looks the logits of the next token up by the last id and its position.

    Attributes:
        config: A tiny Llama's, so that caches and attention know their shapes.
        forwards: Shape ``(B, S)`` of the ids of every forward pass; of packed passes, of every row.
        threads: Names of the threads that computed.
        num_packed: Forward passes over packed rows.
    """

    def __init__(self, config: ModelConfig, table: torch.Tensor, hook: Hook | None) -> None:
        self.config = config
        self.table = table
        self.hook = hook
        self.forwards: list[tuple[int, int]] = []
        self.threads: set[str] = set()
        self.num_packed = 0

    def follow_writes(self) -> None:
        """No weight is ever written to."""

    def decode(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionContext
    ) -> torch.Tensor:
        """Logits ``[B, V]`` after ids ``[B, S]``; the cache grows by S positions."""
        self._compute(input_ids, positions, attention)
        places = positions[:, -1].expand(input_ids.shape[0])
        return self.logits(input_ids[:, -1], places)

    def decode_packed(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        last: torch.Tensor,
        attention: Any,
        *,
        is_recorded: bool = False,
    ) -> torch.Tensor:
        """Logits ``[R, V]`` of packed rows: one pass for the hook, one entry a row in the log."""
        return self.project(self.hidden_packed(input_ids, positions, last, attention))

    def hidden_packed(
        self, input_ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor, attention: Any
    ) -> torch.Tensor:
        """Ids and positions ``[R, 2]`` of some tokens; logged as `decode_packed` is."""
        self.num_packed += 1
        for part in _rows(positions.tolist(), set(wanted.tolist())):
            self.forwards.append((1, part.stop - part.start))
        if self.hook is not None:
            self.hook(input_ids[None], positions[None])
        self.threads.add(threading.current_thread().name)
        attention.begin(1, input_ids.numel())
        attention.attend(0, torch.zeros(input_ids.numel(), 3, self.config.head_dim))
        return torch.stack((input_ids[wanted], positions[wanted]), dim=-1).float()

    @property
    def packed_length(self) -> int | None:
        """Any length."""
        return None

    def take_workspace(self, tokens: int) -> None:
        """There is none."""

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Ids ``[B, S]`` as "embeddings" ``[B, S, 2]``: id and a place for its position."""
        return torch.stack((input_ids, torch.zeros_like(input_ids)), dim=-1).float()

    def hidden(
        self,
        embeddings: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionContext,
        collect: list[torch.Tensor] | None = None,
        depth: int | None = None,
    ) -> torch.Tensor:
        """Ids and positions ``[B, S, 2]``; the cache grows by S positions."""
        input_ids = embeddings[..., 0].long()
        self._compute(input_ids, positions, attention)
        found = torch.stack((input_ids, positions.expand_as(input_ids)), dim=-1).float()
        if collect is not None:
            collect += [embeddings, found]
        return found

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``[..., V]`` of ids and positions ``[..., 2]``."""
        return self.logits(hidden[..., 0].long(), hidden[..., 1].long())

    def _compute(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionContext
    ) -> None:
        self.forwards.append((input_ids.shape[0], input_ids.shape[1]))
        self.threads.add(threading.current_thread().name)
        if self.hook is not None:
            self.hook(input_ids, positions)
        attention.begin(*input_ids.shape)
        attention.attend(0, torch.zeros(input_ids.numel(), 3, self.config.head_dim))

    def logits(self, last_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits ``[B, V]`` after ids ``[B]`` at positions ``[B]``."""
        return self.table[(31 * last_ids + 7 * positions) % len(self.table)]


def _rows(positions: list[int], last: set[int]) -> list[slice]:
    """Find the rows of a packed step: a row ends where logits are wanted, or positions jump.

    A chunk that is followed by a row that begins just behind it is taken for one row with it; the
    schedulers put decoding rows first, so it does not come to that.
    """
    ends = [
        place + 1
        for place, position in enumerate(positions)
        if place in last or place + 1 == len(positions) or positions[place + 1] != position + 1
    ]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


class ScriptedCore(TableCore):
    """Says given ids, by position: the first after a prompt of a known length."""

    def __init__(
        self, config: ModelConfig, script: Sequence[int], prompt_length: int, hook: Hook | None
    ) -> None:
        rows = torch.zeros(len(script) + 1, config.vocab_size)
        rows[torch.arange(len(rows)), torch.tensor([*script, EOS])] = 20.0
        super().__init__(config, rows, hook)
        self._prompt_length = prompt_length

    def logits(self, last_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits ``[B, V]`` that all but name the id of the script."""
        return self.table[(positions + 1 - self._prompt_length).clamp(0, len(self.table) - 1)]


class TableModel(GenerationMixin):
    """A model object as `AsyncLLM` takes it."""

    def __init__(
        self,
        *,
        script: str | Sequence[int] | None = None,
        prompt_length: int = 0,
        seed: int = 0,
        eos_bias: float = -1e4,
        context_length: int = 512,
        hook: Hook | None = None,
        vocab_size: int = VOCABULARY,
        **defaults: Any,
    ) -> None:
        """Make the table.

        Args:
            script: Text or ids that it says after a prompt of ``prompt_length`` ids, then the
                end-of-sequence token; ``None`` for a random table.
            prompt_length: Ids of the prompts that a script is meant for.
            seed: Of the random table.
            eos_bias: Added to the table's scores of special tokens; by default they never come.
            context_length: ``max_position_embeddings``.
            hook: Called with ids and positions in every forward pass.
            vocab_size: Tokens of a script.
            defaults: Fields of the model's own generation config.
        """
        config = ModelConfig.from_hf(
            {
                "model_type": "llama",
                "vocab_size": vocab_size,
                "hidden_size": 2,
                "intermediate_size": 2,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "head_dim": 2,
                "max_position_embeddings": context_length,
                "bos_token_id": None,
                "eos_token_id": EOS,
            }
        )
        self.core: TableCore
        if script is not None:
            ids = list(script.encode()) if isinstance(script, str) else script
            self.core = ScriptedCore(config, ids, prompt_length, hook)
        else:
            table = torch.randn(997, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2
            table[:, EOS:] += eos_bias
            self.core = TableCore(config, table, hook)
        self.config = config
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        self.generation_config = GenerationConfig(
            **{"eos_token_id": EOS, "pad_token_id": PAD, **defaults}
        )

    @property
    def num_forwards(self) -> int:
        """Forward passes so far."""
        return len(self.core.forwards)
