"""The engine: requests in, events out, one step at a time, on one decode thread.

In front is what a step passes: ``loop`` owns the thread and its inbox, ``core`` is the engine
without them, ``batch`` are the samples that share a step and ``sample`` one of them,
``batch_runner`` computes, ``events`` writes what readers get. Behind doors: ``requests`` (from a
prompt and parameters to a request), ``scheduling`` (which rows run, on which pages), ``sampling``
(from logits to tokens), ``lane`` (what cannot share a step) and ``sync`` (without an event loop).
"""
