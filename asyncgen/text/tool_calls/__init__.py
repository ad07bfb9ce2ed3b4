"""How models write reasoning and calls of tools, and how both are read from their text.

A format is a small declaration in a file of its own: the marker that begins a call, how the call
behind it is read, and the words around name and arguments, from which a grammar is made. Which one
a model has is found from the text of its chat template (:mod:`~asyncgen.text.tool_calls.find`). A
reader (:mod:`~asyncgen.text.tool_calls.reader`) takes the exact text of an answer as it grows and
gives the text for the user, the reasoning, and the calls. Knows nothing of tokens, models,
requests or torch.
"""
