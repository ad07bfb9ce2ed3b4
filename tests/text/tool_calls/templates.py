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


def listed(begin: str, end: str, call: str) -> str:
    """A template that writes all calls of a message between two texts, by an expression each."""
    loop = "{%- for call in message.tool_calls or [] %}\n"
    around = f"{{%- if message.tool_calls %}}{{{{- {begin!r} }}}}{{%- endif %}}"
    whole = template(f"{{{{- {call} + ('' if loop.last else ', ') }}}}")
    closing = around.replace(repr(begin), repr(end))
    return whole.replace(loop, around + loop).replace(
        "{%- endfor %}\n{{- '<end>' }}", "{%- endfor %}\n" + closing + "{{- '<end>' }}"
    )


_WHOLE = f"{_OBJECT}({_JSON}) + '}}'"
_VALUE = "(value if value is string else value|tojson)"


def _invoked(begin: str, end: str, call: str, argument: str) -> str:
    """A template with tags named ``call`` and ``argument`` between two texts."""
    return tagged(
        f"'{begin}<{call} name=\"' + call.function.name + '\">\\n'",
        f"'<{argument} name=\"' + key + '\">' + {_VALUE} + '</{argument}>\\n'",
        f"'</{call}>{end}'",
    )


_PYTHON = (
    (
        "{{- CALLED + '(' }}{%- for key, value in call.function.arguments.items() %}"
        "{{- key + '=' }}{%- if value is string %}{{- QUOTED }}{%- else %}{{- value|tojson }}"
        "{%- endif %}{{- '' if loop.last else ', ' }}{%- endfor %}{{- ')' }}"
    )
    .replace("CALLED", "call.function.name")
    .replace("QUOTED", '"\'" + value + "\'"')
)

NEW = {
    "kimi_k2": template(
        "'<|tool_calls_section_begin|><|tool_call_begin|>' + call.id"
        f" + '<|tool_call_argument_begin|>' + ({_JSON})"
        " + '<|tool_call_end|><|tool_calls_section_end|>'"
    ),
    "command_r": listed(
        "<|START_ACTION|>[\n    ",
        "\n]<|END_ACTION|>",
        '\'{"tool_call_id": "\' ~ loop.index0 ~ \'", "tool_name": "\' + call.function.name'
        f" + '\", \"parameters\": ' + ({_JSON}) + '}}'",
    ),
    "nemotron": listed("<TOOLCALL>[", "]</TOOLCALL>", _WHOLE),
    "apriel": listed("<tool_calls>[", "]</tool_calls>", _WHOLE),
    "minimax_m1": listed("<tool_calls>\n", "\n</tool_calls>", _WHOLE),
    "phi_4": template("'<|tool_call|>' + (call.function|tojson) + '<|/tool_call|>'"),
    "functools": listed("functools[", "]", _WHOLE),
    "apertus": listed(
        "<|tools_prefix|>[",
        "]<|tools_suffix|>",
        f"'{{\"' + call.function.name + '\": ' + ({_JSON}) + '}}'",
    ),
    "gigachat": template(f"'<|function_call|>' + {_WHOLE}"),
    "functionary": template(f"'<function=' + call.function.name + '>' + ({_JSON}) + '</function>'"),
    "seed": tagged(
        "'<seed:tool_call>\\n<function=' + call.function.name + '>\\n'",
        "'<parameter=' + key + '>' + value|string + '</parameter>\\n'",
        "'</function>\\n</seed:tool_call>'",
    ),
    "minicpm": _invoked("", "", "function", "param").replace("\\n", ""),
    "minimax_m2": _invoked(
        "<minimax:tool_call>\\n", "\\n</minimax:tool_call>", "invoke", "parameter"
    ),
    "step_3": _invoked(
        "<｜tool_calls_begin｜>\\n<｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_end｜>\\n<｜tool_calls_end｜>",
        "steptml:invoke",
        "steptml:parameter",
    ),
    "hunyuan_3": tagged(
        "'<tool_calls:opensource>\\n<tool_call:opensource>' + call.function.name"
        " + '<tool_sep:opensource>\\n'",
        "'<arg_key:opensource>' + key + '</arg_key:opensource>\\n<arg_value:opensource>'"
        f" + {_VALUE} + '</arg_value:opensource>\\n'",
        "'</tool_call:opensource>\\n</tool_calls:opensource>'",
    ),
    "lfm2": template("{{- '<|tool_call_start|>[' }}" + _PYTHON + "{{- ']<|tool_call_end|>' }}"),
    "olmo_3": template("{{- '<function_calls>\\n' }}" + _PYTHON + "{{- '\\n</function_calls>' }}"),
}
"""Templates of the newer formats, by the name of the format."""

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
    **NEW,
}
"""Templates by the name of the format that is found in them."""
