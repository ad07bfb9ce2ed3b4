"""Structured outputs: answers that follow a JSON schema, a regular expression or a grammar.

`output_format` reads parameters, `grammar_compiler` makes a grammar for a format and a tokenizer,
`grammar` is that grammar with a matcher for each row, `prototype` keeps rows apart where one
becomes too complex, `answer_reader` turns texts into values. The grammar engine is llguidance, of
the extra ``structured``; only `grammar_compiler` imports it. Knows no model, no batch and no event.
"""
