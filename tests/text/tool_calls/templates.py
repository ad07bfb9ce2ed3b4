"""Small chat templates of the documented shapes: turns, tools, calls and reasoning as families do.

Written for the tests: only what tells one family from another is here.
"""

from __future__ import annotations

_TURNS = """\
{%- for message in messages %}
{{- '<start>' + message.role + ':' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- CALL }}
{%- endfor %}
{{- '<end>' }}
{%- endfor %}
"""
_TOOLS = "{%- for tool in tools or [] %}{{ '[' + tool.function.name + ']' }}{%- endfor %}\n"
_ANSWER = "{%- if add_generation_prompt %}{{ '<start>assistant:' }}{%- endif %}"


def template(call: str, *, answer: str = _ANSWER) -> str:
    """A template that writes calls by a jinja expression of ``call``."""
    return _TOOLS + _TURNS.replace("CALL", call) + answer


_OBJECT = '\'{"name": "\' + call.function.name + \'", "arguments": \' + '
_JSON = "call.function.arguments | tojson"

QWEN = template(f"'<tool_call>' + {_OBJECT}({_JSON}) + '}}</tool_call>'")
THINKING = template(
    f"'<tool_call>' + {_OBJECT}({_JSON}) + '}}</tool_call>'",
    answer="{%- if add_generation_prompt %}{{ '<start>assistant:' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}"
    "{%- else %}{{ '<think>' }}{%- endif %}{%- endif %}",
)
QWEN_CODER = template(
    "'<tool_call><function=' + call.function.name + '><parameter=k>v</parameter></function>'"
)
GLM = template("'<tool_call>' + call.function.name + '<arg_key>k</arg_key><arg_value>'")
LLAMA = template(f"'<|python_tag|>' + {_OBJECT}({_JSON}) + '}}'")
MISTRAL = template(f"'[TOOL_CALLS]' + call.function.name + '[ARGS]' + ({_JSON})")
MISTRAL_LIST = template(f"'[TOOL_CALLS][' + {_OBJECT}({_JSON}) + '}}]'")
GRANITE = template(f"'<|tool_call|>[' + {_OBJECT}({_JSON}) + '}}]'")
GEMMA = template("'<|tool_call>call:' + call.function.name + '{}<tool_call|>'")
DEEPSEEK = template(
    "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>'"
)
HARMONY = (
    template("'<|channel|>commentary to=functions.' + call.function.name + '<|message|>'")
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
