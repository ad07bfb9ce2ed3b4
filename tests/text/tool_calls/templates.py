"""Small chat templates of the documented shapes: turns, tools, calls and reasoning as families do.

Written for the tests: only what tells one family from another is here.
"""

from __future__ import annotations

_TURNS = """\
{%- for message in messages %}
{{- '<start>' + message.role + ':' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
CALL
{%- endfor %}
{{- '<end>' }}
{%- endfor %}
"""
_TOOLS = "{%- for tool in tools or [] %}{{ '[' + tool.function.name + ']' }}{%- endfor %}\n"
_ANSWER = "{%- if add_generation_prompt %}{{ '<start>assistant:' }}{%- endif %}"


def template(call: str, *, answer: str = _ANSWER) -> str:
    """A template that writes calls by a jinja expression of ``call``, or by statements."""
    written = call if call.startswith("{") else f"{{{{- {call} }}}}"
    return _TOOLS + _TURNS.replace("CALL", written) + answer


def tagged(head: str, argument: str, end: str) -> str:
    """A template that writes the arguments of calls one by one, by expressions."""
    loop = "{%- for key, value in call.function.arguments.items() %}"
    return template(f"{{{{- {head} }}}}{loop}{{{{- {argument} }}}}{{%- endfor %}}{{{{- {end} }}}}")


_OBJECT = '\'{"name": "\' + call.function.name + \'", "arguments": \' + '
_JSON = "call.function.arguments | tojson"

QWEN = template(f"'<tool_call>' + {_OBJECT}({_JSON}) + '}}</tool_call>'")
THINKING = template(
    f"'<tool_call>' + {_OBJECT}({_JSON}) + '}}</tool_call>'",
    answer="{%- if add_generation_prompt %}{{ '<start>assistant:' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}"
    "{%- else %}{{ '<think>' }}{%- endif %}{%- endif %}",
)
QWEN_CODER = tagged(
    "'<tool_call>\\n<function=' + call.function.name + '>\\n'",
    "'<parameter=' + key + '>\\n' + value|string + '\\n</parameter>\\n'",
    "'</function>\\n</tool_call>'",
)
GLM = tagged(
    "'<tool_call>' + call.function.name + '\\n'",
    "'<arg_key>' + key + '</arg_key>\\n<arg_value>' + value|string + '</arg_value>\\n'",
    "'</tool_call>'",
)
LLAMA = template(f"'<|python_tag|>' + {_OBJECT}({_JSON}) + '}}'")
MISTRAL = template(f"'[TOOL_CALLS]' + call.function.name + '[ARGS]' + ({_JSON})")
MISTRAL_LIST = template(f"'[TOOL_CALLS][' + {_OBJECT}({_JSON}) + '}}]'")
GRANITE = template(f"'<|tool_call|>[' + {_OBJECT}({_JSON}) + '}}]'")
GEMMA = tagged(
    "'<|tool_call>call:' + call.function.name + '{'",
    "(key + ':' + ('<|\"|>' + value + '<|\"|>' if value is string else value|tojson))"
    " ~ ('' if loop.last else ',')",
    "'}<tool_call|>'",
)
DEEPSEEK = template(
    "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>'"
    f" + ({_JSON}) + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>'"
)
HARMONY = (
    template(
        "'<|channel|>commentary to=functions.' + call.function.name + '<|message|>'"
        f" + ({_JSON}) + '<|call|>'"
    )
    + "{# <|channel|>analysis #}"
)
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"

BY_FORMAT = {
    "qwen": QWEN,
    "qwen_coder": QWEN_CODER,
    "glm": GLM,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mistral_list": MISTRAL_LIST,
    "granite": GRANITE,
    "gemma": GEMMA,
    "deepseek": DEEPSEEK,
    "harmony": HARMONY,
}
"""Templates by the name of the format that is found in them."""
