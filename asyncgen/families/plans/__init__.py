"""What a model family declares, and how a file's values are read by it; no torch."""
