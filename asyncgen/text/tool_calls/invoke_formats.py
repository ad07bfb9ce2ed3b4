"""Tool-call formats with tagged arguments, where the call has tags of its own as well."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.tagged_formats import parse_tagged
from asyncgen.text.tool_calls.tagged_grammar import Tags

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import IncrementalParse, TextScanner


def _parse(
    scanner: TextScanner,
    calls: CallCollector,
    *,
    call: tuple[str, str, str],
    tags: Tags,
    closing: str,
    holds_several: bool,
) -> IncrementalParse:
    """Parse calls, and the marker behind the last one, with any white space between tags."""
    before, between, after = call
    while True:
        calls.begin(scanner)
        yield from scanner.space()
        yield from scanner.expect(before)
        name: str = yield from scanner.until(between)
        scanner.skip(len(between))
        calls.name(name.strip())
        yield from parse_tagged(scanner, calls, tags, after)
        yield from scanner.space()
        is_over = yield from scanner.follows(closing)
        if is_over or not holds_several or (scanner.is_complete and not scanner.rest):
            return


def _section(
    name: str,
    begin: str,
    closing: str,
    *,
    call: tuple[str, str, str],
    argument: tuple[str, str, str],
) -> ToolFormat:
    """Declare a format that writes all calls between two markers.

    Args:
        name: Name of the format.
        begin: Marker before the calls.
        closing: Marker after them.
        call: Text before the name of a call, between name and arguments, and after those.
        argument: The same for an argument.
    """
    tags = Tags(*argument, after="\n", is_framed=False)
    before, between, after = call
    return ToolFormat(
        name=name,
        signs=((begin,),),
        begin=begin,
        parse=partial(_parse, call=call, tags=tags, closing=closing, holds_several=True),
        syntax=CallSyntax(
            before,
            f"{between}\n",
            f"{after}\n",
            opening=f"{begin}\n",
            closing=closing,
            arguments=tags.write,
        ),
        markers=(closing, *(each for each in (*call, *argument) if each.startswith("<"))),
    )


def _single(
    name: str,
    begin: str,
    closing: str,
    *,
    call: tuple[str, str, str],
    argument: tuple[str, str, str],
    line: str = "\n",
) -> ToolFormat:
    """Declare a format that writes each call between two markers; see `_section`.

    Args:
        name: Name of the format.
        begin: Marker before a call.
        closing: Marker after it.
        call: As in `_section`, behind ``begin``.
        argument: As in `_section`.
        line: White space between tags.
    """
    tags = Tags(*argument, after=line, is_framed=False)
    before, between, after = call
    return ToolFormat(
        name=name,
        signs=((begin,),),
        begin=begin,
        parse=partial(_parse, call=call, tags=tags, closing=closing, holds_several=False),
        syntax=CallSyntax(
            begin + (line if before else "") + before,
            between + line,
            after + (line + closing if closing else ""),
            separator=line,
            arguments=tags.write,
        ),
        markers=tuple(each for each in (closing, *call, *argument) if each.startswith("<")),
    )


SEED = _single(
    "seed",
    "<seed:tool_call>",
    "</seed:tool_call>",
    call=("<function=", ">", "</function>"),
    argument=("<parameter=", ">", "</parameter>"),
)
"""Seed-OSS: ``<seed:tool_call><function=…><parameter=…>…</parameter></function>``."""

MINICPM = _single(
    "minicpm",
    '<function name="',
    "",
    call=("", '">', "</function>"),
    argument=('<param name="', '">', "</param>"),
    line="",
)
"""MiniCPM 5: ``<function name=…><param name=…>…</param></function>``."""

MINIMAX_M2 = _section(
    "minimax_m2",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    call=('<invoke name="', '">', "</invoke>"),
    argument=('<parameter name="', '">', "</parameter>"),
)
"""MiniMax M2: ``<minimax:tool_call><invoke name=…><parameter name=…>…``."""

STEP_3 = _section(
    "step_3",
    "<｜tool_calls_begin｜>",
    "<｜tool_calls_end｜>",
    call=(
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
        '">',
        "</steptml:invoke><｜tool_call_end｜>",
    ),
    argument=('<steptml:parameter name="', '">', "</steptml:parameter>"),
)
"""Step 3: ``<steptml:invoke name=…>`` between the markers of DeepSeek. (3.5 is `qwen_coder`.)"""

HUNYUAN = _section(
    "hunyuan_3",
    "<tool_calls:opensource>",
    "</tool_calls:opensource>",
    call=("<tool_call:opensource>", "<tool_sep:opensource>", "</tool_call:opensource>"),
    argument=(
        "<arg_key:opensource>",
        "</arg_key:opensource>\n<arg_value:opensource>",
        "</arg_value:opensource>",
    ),
)
"""Hunyuan 3: ``<tool_call:opensource>name<tool_sep:opensource><arg_key:opensource>…``."""

FORMATS = (SEED, MINIMAX_M2, STEP_3, HUNYUAN, MINICPM)
"""In the order in which they are tried."""
