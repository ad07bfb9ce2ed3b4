"""The bundled demo model: its corpus, tokenizer, network, training and measurement."""
