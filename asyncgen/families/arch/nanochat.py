"""nanochat: norms without weights, of embeddings too; heads are normalised after rotation."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, SMALL, Family
from asyncgen.families.plans.layer_plan import HeadNormPlan, NormPlan

_PLAIN = NormPlan(has_weight=False)

FAMILY = Family(
    "nanochat",
    "NanoChatForCausalLM",
    names={
        **LLAMA_NAMES,
        "embed_norm": "model.norm",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
    defaults={
        **SMALL,
        "vocab_size": 50304,
        "hidden_size": 768,
        "intermediate_size": 8192,
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "hidden_act": "relu2",
        "final_logit_softcapping": 15.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    },
    is_backward=True,
    norm=_PLAIN,
    head_norm=HeadNormPlan(_PLAIN, is_after_rope=True),
    is_gated=False,
    logit_cap=lambda values: values.positive_or_none("final_logit_softcapping"),
)
