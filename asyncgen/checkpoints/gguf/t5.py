"""Declare T5's architecture in llama.cpp: an encoder and a decoder in one file.

Only the names differ from those of a checkpoint. Imports no torch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.gguf.declaration import Architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.checkpoints.gguf.gguf_file import GgufModel

_NAME: Final = re.compile(r"(?P<stack>enc|dec)\.(?:blk\.(?P<layer>\d{1,9})\.)?(?P<rest>.+)")
_STACKS: Final = {"enc": "encoder", "dec": "decoder"}
_WHOLE: Final = {"token_embd.weight": "shared.weight", "output.weight": "lm_head.weight"}
_PARTS: Final = {
    "attn_norm": "0.layer_norm",
    "attn_q": "0.SelfAttention.q",
    "attn_k": "0.SelfAttention.k",
    "attn_v": "0.SelfAttention.v",
    "attn_o": "0.SelfAttention.o",
    "attn_rel_b": "0.SelfAttention.relative_attention_bias",
    "cross_attn_norm": "1.layer_norm",
    "cross_attn_q": "1.EncDecAttention.q",
    "cross_attn_k": "1.EncDecAttention.k",
    "cross_attn_v": "1.EncDecAttention.v",
    "cross_attn_o": "1.EncDecAttention.o",
    "cross_attn_rel_b": "1.EncDecAttention.relative_attention_bias",
    "ffn_norm": "{last}.layer_norm",
    "ffn_gate": "{last}.DenseReluDense.wi_0",
    "ffn_up": "{last}.DenseReluDense.{up}",
    "ffn_down": "{last}.DenseReluDense.wo",
}
_GATE: Final = "enc.blk.0.ffn_gate.weight"


def _t5(model: GgufModel) -> Mapping[str, Any]:
    """Read the depth of both stacks; a gate shows the later variants."""
    own = model.own
    depth = own.whole("block_count")
    below = own.whole("decoder_block_count")
    return {
        "num_layers": depth,
        "num_decoder_layers": depth if below is None else below,
        "feed_forward_proj": "gated-gelu" if _GATE in model.tensors else "relu",
        "is_encoder_decoder": True,
    }


def stack_names(model: GgufModel) -> dict[str, str]:
    """Return the names of tensors in a checkpoint; an unknown tensor keeps its name.

    Args:
        model: The file.
    """
    up = "wi_1" if _GATE in model.tensors else "wi"
    found: dict[str, str] = {}
    for name in model.tensors:
        parsed = _NAME.fullmatch(name)
        found[name] = _WHOLE.get(name, name)
        if parsed is None:
            continue
        stack, layer, rest = parsed["stack"], parsed["layer"], parsed["rest"]
        stem, _, kind = rest.rpartition(".")
        if layer is None and stem == "output_norm":
            found[name] = f"{_STACKS[stack]}.final_layer_norm.{kind}"
        elif layer is not None and stem in _PARTS:
            part = _PARTS[stem].format(last=2 if stack == "dec" else 1, up=up)
            found[name] = f"{_STACKS[stack]}.block.{int(layer)}.layer.{part}.{kind}"
    return found


T5: Final = Architecture(
    "t5",
    {
        "attention.relative_buckets_count": "relative_attention_num_buckets",
        "decoder_start_token_id": "decoder_start_token_id",
    },
    more=_t5,
)
