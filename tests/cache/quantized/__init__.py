"""Keys and values in few bits, compared with transformers, quanto and hqq."""
