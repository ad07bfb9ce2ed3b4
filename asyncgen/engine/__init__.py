"""The engine: requests in, events out, one step at a time, on one decode thread.

``loop`` owns the thread and its inbox; ``core`` is the engine without thread, loop or clock;
``scheduler`` and ``schedulers`` choose the rows of a shared step, and ``pages`` is what they fill;
``turns`` decides whose turn it is beside the batch; ``runner`` advances one request; ``sampler`` is
its randomness; ``request`` and ``params`` are what a request is made of.
"""
