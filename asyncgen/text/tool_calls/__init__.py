"""Formats in which families of models write tool calls and reasoning.

A format is a small declaration in a file of its own: the marker that begins a call, the parser of
the call behind it, and the text around name and arguments, from which a grammar is made.
`format_detection` finds the format of a model: it renders a known call through the chat template
(`template_probe`), and takes the format that reads it back. A parser
(`answer_parser`) takes the exact text of an answer as it grows and gives the text for the user,
the reasoning, and the calls. Knows nothing of tokens, models, requests or torch.
"""
