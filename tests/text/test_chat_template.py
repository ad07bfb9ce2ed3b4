"""Tests of `asyncgen.text.chat_template`, beside transformers' rendering of the same templates."""

from __future__ import annotations

import gc
import json
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.errors import ChatTemplateError, InvalidRequestError
from asyncgen.text.chat_template import _compiled, check_messages, render_chat, select_template
from asyncgen.text.tokenizer import Tokenizer
from tests.cases import for_each
from tests.doubles.tokenizers import save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

# In the style of Llama 2: the system message moves into the first user turn.
INST = """\
{% if messages[0]['role'] == 'system' %}
{% set loop_messages = messages[1:] %}
{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
{% else %}
{% set loop_messages = messages %}
{% set system = '' %}
{% endif %}
{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% set content = system + message['content'] if loop.index0 == 0 else message['content'] %}
{% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{{ ' ' + content.strip() + ' ' + eos_token }}
{% endif %}
{% endfor %}"""

# In the style of Llama 3: headers, and content that may be a list of parts.
HEADERS = """\
{%- macro text(content) %}
    {%- if content is string %}{{- content | trim }}
    {%- else %}
        {%- for part in content if part['type'] == 'text' %}{{- part['text'] }}{%- endfor %}
    {%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'skip' %}{%- continue %}{%- endif %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {{- text(message.content) + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

# In the style of Qwen: tools as JSON, calls and answers, a namespace, a variable of the caller's.
TOOLS = """\
{%- set ns = namespace(calls=0) %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {%- set ns.calls = ns.calls + 1 %}
        {{- '\\n<tool_call>\\n' + call.function | tojson(indent=2) + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '(' ~ ns.calls ~ ' calls)' }}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

# In the style of Mistral: alternation, training marks, the date.
STRICT = """\
{%- set today = strftime_now("%Y") %}
{%- for message in messages %}
    {%- if (message["role"] == "user") != (loop.index0 is divisibleby 2) %}
        {{- raise_exception("After the optional system message, roles must alternate") }}
    {%- endif %}
    {%- if message["role"] == "assistant" %}
        {%- generation %}{{- message["content"] + eos_token }}{%- endgeneration %}
    {%- else %}
        {{- "[INST]" + message["content"] + "[/INST]" + today }}
    {%- endif %}
{%- endfor %}"""

TEMPLATES = {
    "chatml": CHATML,
    "inst": INST,
    "headers": HEADERS,
    "tools": TOOLS,
    "strict": STRICT,
}

USER = {"role": "user", "content": " Hello <b>'wörld'</b> & you "}
ASSISTANT = {"role": "assistant", "content": " Yes,\nof course. "}
SYSTEM = {"role": "system", "content": "Be kind."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "wetter", "arguments": {"ort": "Köln", "tage": 3}}}],
}
WEATHER = {
    "type": "function",
    "function": {"name": "wetter", "description": "how's the <weather>?", "parameters": {}},
}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [USER],
    "turns": [USER, ASSISTANT, USER],
    "answered": [USER, ASSISTANT],
    "system": [SYSTEM, USER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}]}],
    "call": [USER, CALL, {"role": "tool", "content": "rain"}],
    "wrong order": [ASSISTANT, USER],
    "skipped": [{"role": "skip", "content": "x"}, USER],
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    folder = save_tokenizer(tmp_path_factory.mktemp("chat"), "byte_fallback")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))
    return Tokenizer.from_folder(folder), theirs


def outcome(tokenizer: Any, messages: Any, options: dict[str, Any]) -> str | None:
    """The rendered text, or nothing where the template fails."""
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception:
        return None


def expected(theirs: Any, messages: Any, options: dict[str, Any]) -> str | None:
    """The reference's text; with a null content left out, or empty, where it fails for that."""
    without = [{k: v for k, v in each.items() if v is not None} for each in messages]
    empty = [{"content": "", **each} for each in without]
    texts = (outcome(theirs, form, options) for form in (messages, without, empty))
    return next((text for text in texts if text is not None), None)


@for_each("conversation", CONVERSATIONS)
@for_each("name", TEMPLATES)
def test_as_the_reference(pair: tuple[Tokenizer, Any], name: str, conversation: str) -> None:
    ours, theirs = pair
    messages = CONVERSATIONS[conversation]
    for extra in (
        {},
        {"add_generation_prompt": True},
        {"add_generation_prompt": True, "enable_thinking": False},
        {"tools": [WEATHER]},
        {"continue_final_message": True},
    ):
        options = {"chat_template": TEMPLATES[name], **extra}
        assert outcome(ours, messages, options) == expected(theirs, messages, options), extra


def test_the_comparison_compares_something(pair: tuple[Tokenizer, Any]) -> None:
    texts = {
        outcome(pair[0], messages, {"chat_template": template})
        for messages in CONVERSATIONS.values()
        for template in TEMPLATES.values()
    }
    assert len(texts) > 15


def test_block_lines_leave_no_trace() -> None:
    template = "{% if true %}\n  a\n  {% endif %}\nb\n"
    assert render_chat(template, [USER]) == "  a\nb"


def test_tojson_does_not_escape_for_html() -> None:
    text = render_chat("{{ messages[0].content | tojson }}", [USER])
    assert text == "\" Hello <b>'wörld'</b> & you \""


@for_each(
    ("expression", "wanted"),
    [
        ("[{'a': {'b': 1}}] | map(attribute='a') | tojson", '[{"b": 1}]'),
        ("[1, 0, 2] | select | tojson(indent=1)", "[\n 1,\n 2\n]"),
        ("[1, 2] | reverse | tojson", "[2, 1]"),
        ("[1, 2, 3] | batch(2) | tojson", "[[1, 2], [3]]"),
        ("{'a': 1} | items | tojson", '[["a", 1]]'),
        ("[] | reject | tojson", "[]"),
    ],
)
def test_tojson_writes_what_a_filter_gives_as_a_list(expression: str, wanted: str) -> None:
    """A template of llama.cpp for DeepSeek R1 counts on that."""
    for trusts in (False, True):
        assert render_chat(f"{{{{ {expression} }}}}", [USER], trust_template=trusts) == wanted
    for other in ("{}.items()", "range(2)"):
        with pytest.raises(ChatTemplateError, match="is not JSON serializable"):
            render_chat(f"{{{{ {other} | tojson }}}}", [USER])
    with pytest.raises(ChatTemplateError, match="is not JSON serializable"):
        render_chat("{% for _ in [1] %}{{ loop | tojson }}{% endfor %}", [USER])


def test_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    assert render_chat("{{ strftime_now('%Y-%m') }}", [USER]) == datetime.now().strftime("%Y-%m")


def test_variables_do_not_shadow_the_messages() -> None:
    text = render_chat("{{ messages | length }}{{ x }}", [USER], variables={"messages": [], "x": 1})
    assert text == "11"


def test_rendering_leaves_messages_alone() -> None:
    message = dict(USER)
    render_chat(TOOLS, [message], continue_final_message=True)
    assert message == USER


def test_a_template_is_compiled_once() -> None:
    template = "{{ messages[0].role }} once"
    _compiled.cache_clear()
    for _ in range(3):
        render_chat(template, [USER])
    assert _compiled.cache_info().misses == 1


@for_each(
    ("template", "message"),
    [
        ("{{ x", r"line 1 of the chat template is not valid jinja: unexpected end"),
        ("a\n{% fir %}", r"line 2 of the chat template is not valid jinja: .*'fir'"),
        ("a\n\n{{ nothing.x }}", r"failed on line 3: UndefinedError: 'nothing' is undefined"),
        ("{{ messages[0].content + 1 }}", r"failed on line 1: TypeError: .*check that the mess"),
        ("{{ raise_exception('roles must alternate') }}", r"refused the messages: roles must alt"),
    ],
)
def test_broken_templates(template: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        render_chat(template, [USER])


@for_each(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for i in range(10000000) %}x{% endfor %}",
    ],
)
def test_the_sandbox_holds(template: str) -> None:
    with pytest.raises(ChatTemplateError):
        render_chat(template, [USER])


@for_each(
    ("messages", "message"),
    [
        ("hi", "`messages` is 'hi': give a list"),
        ({"role": "user", "content": "x"}, "`messages` is .*: give a list"),
        ([], "give at least one message"),
        ([USER, "hi"], r"`messages\[1\]` is 'hi': give a mapping"),
        ([{"content": "x"}], r"`messages\[0\].role` is None: give a text"),
        ([{"role": "", "content": "x"}], r"`messages\[0\].role` is ''"),
        ([{"role": "user"}], r"`messages\[0\].content` is None: give a text or a list"),
        ([USER, {"role": "user", "content": 5}], r"`messages\[1\].content` is 5"),
        ([{"role": "user", "content": [5]}], r"`messages\[0\].content` is \[5\]: give parts"),
    ],
)
def test_malformed_messages(messages: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_messages(messages)
    with pytest.raises(InvalidRequestError, match=message):
        render_chat(CHATML, messages)


def test_malformed_tools_and_documents() -> None:
    with pytest.raises(InvalidRequestError, match="`tools` is .*: give a list"):
        render_chat(TOOLS, [USER], tools={"name": "f"})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"`tools\[0\]` is .*: give the JSON schema"):
        render_chat(TOOLS, [USER], tools=[print])  # type: ignore[list-item]
    with pytest.raises(InvalidRequestError, match=r"`documents\[0\]`"):
        render_chat(TOOLS, [USER], documents=["text"])  # type: ignore[list-item]


def test_continuing_needs_something_to_continue() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be combined with `add_generation_"):
        render_chat(CHATML, [USER], continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(InvalidRequestError, match=r"`messages\[1\].content` is None.*continue"):
        render_chat(TOOLS, [USER, CALL], continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="the last message does not appear"):
        render_chat("{{ messages[0].content }}", [USER, ASSISTANT], continue_final_message=True)


def test_selecting_a_template() -> None:
    named = {"default": "d", "tool_use": "t", "rag": "r"}
    assert select_template(named, None, has_tools=False) == "d"
    assert select_template(named, None, has_tools=True) == "t"
    assert select_template(named, "rag", has_tools=True) == "r"
    assert select_template(named, "{{ x }}", has_tools=False) == "{{ x }}"
    assert select_template("one", None, has_tools=True) == "one"
    assert select_template(None, "given", has_tools=False) == "given"
    with pytest.raises(ChatTemplateError, match="none is called `default`.*'rag'"):
        select_template({"rag": "r"}, None, has_tools=False)
    with pytest.raises(ChatTemplateError, match="has no chat template"):
        select_template(None, None, has_tools=False)
    with pytest.raises(ChatTemplateError, match="has no chat template"):
        select_template({}, None, has_tools=False)


def test_templates_from_files(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    folder = save_tokenizer(tmp_path, "byte_level", chat_template=listed)
    assert Tokenizer.from_folder(folder).chat_template == {"default": "one", "tool_use": "two"}
    (folder / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("rag", encoding="utf-8")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.chat_template == {"default": "from the file", "rag": "rag"}
    assert tokenizer.apply_chat_template([USER], tokenize=False, chat_template="rag") == "rag"
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.chat_template == tokenizer.chat_template


REASONING: list[dict[str, Any]] = [
    {"role": "user", "content": "Rain?"},
    {
        "role": "assistant",
        "reasoning_content": "I look.",
        "tool_calls": [{"function": {"name": "wetter", "arguments": {"ort": "Köln"}}}],
    },
]


def renamed(name: str) -> list[dict[str, Any]]:
    """The same reasoning under another name."""
    message = {**REASONING[1], name: REASONING[1]["reasoning_content"]}
    if name != "reasoning_content":
        del message["reasoning_content"]
    return [REASONING[0], message]


@for_each("sent", ["reasoning_content", "thinking", "reasoning"])
@for_each("read", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_reaches_a_template_under_every_name(sent: str, read: str) -> None:
    for field in (f"message.{read}", f"message['{read}']", f"message.get('{read}')"):
        template = "{% for message in messages %}{{ FIELD or '' }}{% endfor %}"
        assert render_chat(template.replace("FIELD", field), renamed(sent)) == "I look."
    test = f"{{{{ messages[1].{read} is defined and messages[0].{read} is not defined }}}}"
    assert render_chat(test, renamed(sent)) == "True"


def test_reasoning_that_was_given_under_two_names_is_read_as_by_the_reference(
    pair: tuple[Tokenizer, Any],
) -> None:
    names = ("reasoning_content", "thinking")
    template = "".join(f"{{{{ messages[0].{name} }}}}|" for name in names)
    for given in (
        {"thinking": "a", "reasoning": "b"},
        {"reasoning_content": "a", "thinking": "b"},
        {"reasoning_content": "", "thinking": "b"},
        {"reasoning": "b", "reasoning_content": None},
    ):
        messages = [{"role": "assistant", "content": "", **given}]
        ours, theirs = (outcome(each, messages, {"chat_template": template}) for each in pair)
        assert ours == theirs is not None


def test_reasoning_that_is_no_text_is_refused() -> None:
    for name in ("reasoning_content", "thinking", "reasoning"):
        with pytest.raises(InvalidRequestError, match=rf"`messages\[0\].{name}`.*give a text"):
            render_chat("x", [{"role": "assistant", "content": "", name: ["x"]}])


# As DeepSeek's distilled models: calls beside a content, which is tested for none and searched.
TESTED = """\
{%- for message in messages %}
    {%- for call in message['tool_calls'] or [] %}{{ '(' + call['function']['name']
        + call['function']['arguments'] + ')' }}{%- endfor %}
    {%- if message['content'] is not none %}
        {%- if '</think>' in message['content'] %}{{ '?' }}{%- endif %}
        {{- '[' + message['content'] + ']' }}
    {%- endif %}
{%- endfor %}"""
# As the first LFM2: what is no text is written as JSON.
AS_JSON = """\
{%- for message in messages %}
    {%- set content = message["content"] %}
    {%- if content is not string %}{%- set content = content | tojson %}{%- endif %}
    {{- content + ';' }}
{%- endfor %}"""
WRITTEN = "{% for message in messages %}{{ message.content | trim }};{% endfor %}"
JOINED = "{% for message in messages %}{{ message.content ~ ';' }}{% endfor %}"
DEFINED = (
    "{% for message in messages %}{% if message.content is defined %}{{ message.content }}"
    "{% endif %};{% endfor %}"
)
COMPARED = (
    "{% for message in messages %}{{ 'null' if message.content == none else message.content }};"
    "{% endfor %}"
)


@for_each(
    ("template", "text"),
    [
        (TESTED, '[ Hello <b>\'wörld\'</b> & you ](wetter{"ort": "Köln", "tage": 3})'),
        (AS_JSON, f"{USER['content']};;"),
        (WRITTEN, "Hello <b>'wörld'</b> & you;;"),
        (JOINED, f"{USER['content']};;"),
        (DEFINED, f"{USER['content']};;"),
        (COMPARED, f"{USER['content']};null;"),
    ],
)
def test_a_null_content_beside_calls_is_never_written(template: str, text: str) -> None:
    absent = {name: value for name, value in CALL.items() if name != "content"}
    assert render_chat(template, [USER, CALL]) == text
    if template is not COMPARED:  # which takes both, and differs
        assert render_chat(template, [USER, absent]) == text


def test_a_message_written_whole_has_its_null() -> None:
    text = render_chat("{{ messages[0] | tojson }}", [CALL])
    assert json.loads(text)["content"] is None


def test_template_errors_keep_their_reason() -> None:
    with pytest.raises(ChatTemplateError, match="refused the messages: not today"):
        render_chat("{{ raise_exception('not today') }}", [USER, CALL])
    with pytest.raises(ChatTemplateError, match="sandbox stopped"):
        render_chat("{{ messages.__class__.__mro__ }}", [USER, CALL])


def test_reasoning_and_content_beside_calls_are_both_returned() -> None:
    template = (
        "{% for message in messages %}{% if message.content and message.thinking %}"
        "{{ raise_exception('one or the other') }}{% endif %}"
        "{{ message.thinking or message.content }};{% endfor %}"
    )
    messages = [REASONING[0], {**REASONING[1], "content": "Let me see."}]
    assert render_chat(template, messages) == "Rain?;I look.\nLet me see.;"


@for_each("template", ["{% macro f() %}\n{{ f() }}{% endmacro %}\n\n{{ f() }}", "\n\n{{ 1 // 0 }}"])
def test_a_failure_leaves_no_rings_of_frames(template: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"failed on line [123]: "):
        render_chat(template, [{"role": "user", "content": "hello"}])
    gc.collect()
    with suppress(ChatTemplateError):
        render_chat(template, [{"role": "user", "content": "hello"}])
    assert gc.collect() < 100
