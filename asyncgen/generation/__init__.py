"""Generation: configuration, logits processors, stopping criteria and output objects.

Nothing is imported here, so that ``asyncgen.generation.config`` stays importable without torch.
"""
