"""Read ``response_template``: a declaration of how a model writes reasoning, calls and text.

It stands in ``tokenizer_config.json`` and turns an answer into a message, as transformers 5.23 has
it. `template` reads the declaration, `patterns` searches for its markers in linear time, `regions`
splits a growing answer, `contents` gives the value of each part, and `response_parser` makes the
message and its events. Knows nothing of tokens, models, requests or torch.
"""
