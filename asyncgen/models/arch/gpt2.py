"""GPT-2: learned positions, normalisation by layer, a plain feed-forward block.

Its checkpoints store every matrix as ``[in, out]``, which the weight map says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from asyncgen.models.decoder import ACTIVATIONS, DecoderLM
from asyncgen.models.kernels.linear import Embedding, Linear
from asyncgen.models.kernels.norm import LayerNorm
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.weight_map import WeightRule, module_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor, nn

    from asyncgen.models.attention.dense import AttentionContext
    from asyncgen.models.config import ModelConfig


class Workspace:
    """Memory for the intermediate results of N tokens."""

    __slots__ = ("heads", "qkv", "up")

    def __init__(self, config: ModelConfig, tokens: int, like: Tensor) -> None:
        """Allocate for ``tokens`` tokens, in the dtype and on the device of ``like``."""
        self.qkv = like.new_empty(tokens, 3 * config.hidden_size)
        self.heads = self.qkv.view(tokens, 3 * config.num_attention_heads, config.head_dim)
        self.up = like.new_empty(tokens, config.intermediate_size)


class GPT2Layer(Prepared):
    """One block: attention, then feed-forward, each normalised before and added to the stream."""

    def __init__(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        """Make the parameters.

        Args:
            config: The model's.
            index: Which layer this is.
            dtype: Of the parameters.
        """
        super().__init__()
        hidden, width, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        self.index = index
        self.head_dim = config.head_dim
        self.input_norm = LayerNorm(hidden, eps, dtype=dtype)
        self.qkv = Linear(hidden, 3 * hidden, True, dtype=dtype)
        self.output = Linear(hidden, hidden, True, dtype=dtype)
        self.post_norm = LayerNorm(hidden, eps, dtype=dtype)
        self.up = Linear(hidden, width, True, dtype=dtype)
        self.down = Linear(width, hidden, True, dtype=dtype)
        self.activate = ACTIVATIONS[config.hidden_act]

    def prepare(self) -> None:
        """Gather what `run` uses; again after weights were replaced or moved."""
        self._plan = (
            self.input_norm.scaler.into,
            self.qkv.ready().into,
            self.output.ready().add_to,
            self.post_norm.scaler.into,
            self.up.ready().into,
            self.down.ready().add_to,
        )

    def run(self, x: Tensor, attention: AttentionContext, space: Workspace) -> None:
        """Add this block's output to the stream ``x`` ``[N, E]`` in place.

        Args:
            x: The residual stream.
            attention: Does the attention.
            space: Memory for N tokens.
        """
        input_norm, qkv_into, add_output, post_norm, up_into, add_down = self._plan or self._ready()
        qkv = qkv_into(input_norm(x, x), space.qkv)
        heads = space.heads if qkv is space.qkv else qkv.view(qkv.shape[0], -1, self.head_dim)
        add_output(x, attention.attend(self.index, heads))
        add_down(x, self.activate(up_into(post_norm(x, x), space.up)))


class GPT2(DecoderLM):
    """A decoder whose positions are rows of a table, added to the embeddings.

    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3.
    """

    model_type = "gpt2"
    class_name = "GPT2LMHeadModel"
    tokenizer_names = ("GPT2Tokenizer", "GPT2TokenizerFast")
    stack_prefix: ClassVar[str] = "transformer."
    table_name: ClassVar[str] = "wte"
    has_token_types: ClassVar[bool] = True
    # Causal masks, which early checkpoints stored with every layer.
    unneeded = (*DecoderLM.unneeded, r"\.attn\.(masked_)?bias$")

    def _stack_rules(self) -> list[WeightRule]:
        config, prefix, hidden = self.config, self.stack_prefix, self.config.hidden_size
        rules = module_rules("embed_positions", [f"{prefix}wpe"], [_places(config)], hidden)
        for index in range(config.num_hidden_layers):
            rules += self._layer_rules(index)
        return rules + module_rules("norm", [f"{prefix}ln_f"], [hidden], bias=True)

    def _layer_rules(self, index: int) -> list[WeightRule]:
        hidden, width = self.config.hidden_size, self.config.intermediate_size
        layout = (
            ("input_norm", "ln_1", hidden, None),
            ("qkv", "attn.c_attn", 3 * hidden, hidden),
            ("output", "attn.c_proj", hidden, hidden),
            ("post_norm", "ln_2", hidden, None),
            ("up", "mlp.c_fc", width, hidden),
            ("down", "mlp.c_proj", hidden, width),
        )
        rules: list[WeightRule] = []
        for ours, theirs, rows, columns in layout:
            target, sources = f"layers.{index}.{ours}", [f"{self.stack_prefix}h.{index}.{theirs}"]
            is_matrix = columns is not None
            rules += module_rules(target, sources, [rows], columns, bias=True, transposed=is_matrix)
        return rules

    def _make_layer(self, index: int, dtype: torch.dtype) -> nn.Module:
        return GPT2Layer(self.config, index, dtype)

    def _make_norm(self, dtype: torch.dtype) -> LayerNorm:
        return LayerNorm(self.config.hidden_size, self.config.rms_norm_eps, dtype=dtype)

    def _make_positions(self, dtype: torch.dtype) -> None:
        config = self.config
        self.embed_positions = Embedding(_places(config), config.hidden_size, dtype=dtype)

    def _make_space(self, tokens: int, like: Tensor) -> Workspace:
        return Workspace(self.config, tokens, like)

    def _placing(self) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
        lookup = self.embed_positions.lookup

        def place(stream: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
            stream.add_(lookup(positions))
            return ()

        return place


def _places(config: ModelConfig) -> int:
    """Rows of the table of positions."""
    assert config.position_limit is not None
    return config.position_limit
