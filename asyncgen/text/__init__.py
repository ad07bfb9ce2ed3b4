"""Turn text into token ids and back: tokenizers, chat templates, tool calls."""
