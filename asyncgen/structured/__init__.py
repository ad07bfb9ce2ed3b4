"""Answers in a shape: what was asked for, its grammar, and where each row is in it.

`shape` reads parameters, `compiling` makes a grammar of a shape and a tokenizer, `grammar` is that
grammar with a matcher for each row, `parsing` turns texts into values. The engine of grammars is
llguidance, of the extra ``structured``; nothing but `compiling` imports it. This package knows no
model, no batch and no event.
"""
