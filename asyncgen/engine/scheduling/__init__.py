"""Which samples run in a step, and on which pages: plain Python over integers, without torch."""
