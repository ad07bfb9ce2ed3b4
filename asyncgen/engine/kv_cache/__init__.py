"""Hand out blocks of the KV cache and share equal prefixes: plain Python over integers."""
