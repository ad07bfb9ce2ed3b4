"""Model modules: one file per architecture, the block they share, and attention."""
