"""Logits processors: what changes the scores of the next token before one is picked.

Those of a configuration run in this order: `guidance_scale`, `sequence_bias`, `diversity_penalty`,
`encoder_repetition_penalty`, `repetition_penalty`, `no_repeat_ngram_size`,
`encoder_no_repeat_ngram_size`, `bad_words_ids`, `min_length`, `min_new_tokens`,
`prefix_allowed_tokens_fn`, `forced_bos_token_id`, `forced_eos_token_id`, `remove_invalid_values`,
`exponential_decay_length_penalty`, `suppress_tokens`, `begin_suppress_tokens`, `presence_penalty`,
`frequency_penalty`, `dry_multiplier`, `grammar`; then what the user passes as objects; then, where
tokens are drawn, `temperature`, `top_n_sigma`, `top_h`, `top_k`, `top_p`, `min_p`, `typical_p`,
`epsilon_cutoff`, `eta_cutoff`, `xtc_probability`, `dynatemp_range`, `mirostat`; and at last
`watermarking_config`, `renormalize_logits`.
"""

# Each of these makes its kinds of processors known; `build_logits_processors` makes them of all.
from asyncgen.generation.logits import (  # noqa: F401
    bans,
    diversity,
    dry,
    entropy_filters,
    filters,
    guidance,
    lengths,
    llama_filters,
    mirostat,
    ngrams,
    penalties,
    prefix,
)
