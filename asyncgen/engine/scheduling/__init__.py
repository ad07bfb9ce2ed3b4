"""Choose the sequences of a step and their blocks: plain Python over integers, without torch."""
