"""Serve requests in shared steps on one decode thread: requests in, events out.

``thread`` owns the thread and its inbox, ``core`` is the engine without them, ``batch`` the shared
step. ``requests`` makes requests from prompts and parameters, ``scheduling`` picks the rows of a
step, ``kv_cache`` has their memory, ``sampling`` picks tokens, ``output`` writes events, ``lane``
serves requests that cannot share a step, and ``setup`` builds an engine around a model.
"""
