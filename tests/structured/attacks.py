"""Output formats that cost seconds, minutes or gigabytes without the limits of their cost."""

from __future__ import annotations

import json
from typing import Any

_BIG = [{"pattern": f"^([ab]{{{number}}})*c$"} for number in (997, 991)]
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
_LCM = [{"pattern": f"^([ab]{{{number}}})*c$"} for number in _PRIMES]
_DOUBLED = "\n".join(f"A{number}: A{number + 1} A{number + 1}" for number in range(14))
_CHAIN = "\n".join(f'r{number}: r{number + 1} "x"?' for number in range(900))
_MULTIPLE = {"type": "integer", "multipleOf": 123456789}


def _string(**rules: Any) -> dict[str, Any]:
    return {"json_schema": {"type": "string", **rules}}


REFUSED: list[dict[str, Any]] = [
    {"regex": "(a?){4000}a{4000}"},
    {"regex": "(x+x+){1000}y"},
    {"regex": "(a|aa){3000}z"},
    {"regex": "((a?){60}a{60}){60}"},
    {"regex": "(a{2,3}|a{3,5}|a{5,8}){400}b"},
    {"regex": "a{4000000}"},
    {"regex": "(abcdefghij){400000}"},
    {"regex": "a?" * 30_000},
    {"regex": "a*" * 3000},
    {"regex": "(|a)" * 8000},
    {"regex": "(?x) # [\n" + "a?" * 20_000 + "# ]"},
    {"regex": "(" + "|".join("a" * number for number in range(1, 300)) + "){200}b"},
    _string(pattern="^(a?){4000}a{4000}$"),
    _string(pattern="^" + "a?" * 20_000 + "$"),
    _string(pattern="[" * 20_000),
    _string(pattern="[\\a" * 10_000),
    _string(allOf=_LCM),
    {"json_schema": {"type": "array", "x-guidance": {"item_separator": "(a?){4000}a{4000}"}}},
    {"json_schema": {"anyOf": [{"pattern": "a?" * 400 + chr(98 + n)} for n in range(9)]}},
    {"grammar": "start: /(a?){4000}a{4000}/"},
    {"grammar": 'start: X\nX: ("a"?){4000} "a"{4000}'},
    {"grammar": f'start: A0\n{_DOUBLED}\nA14: "a"?'},
    {"grammar": "start: ~/(a?){40}b/"},
    {"grammar": "start: /" + "a?" * 20_000 + "/"},
    {"grammar": f"start: %json {json.dumps(_MULTIPLE)}"},
    {"choice": ["ab " * 20_000]},
]

REFUSED_SLOWLY: list[dict[str, Any]] = [
    _string(allOf=_BIG),
    {"grammar": "start: X\nX: " + " & ".join(f"/([ab]{{{n}}})*c/" for n in _PRIMES)},
    {"grammar": "start: X\nX: /([ab]{997})*c/ & /([ab]{991})*c/"},
    {"grammar": f"start: %json {json.dumps(_string(allOf=_BIG)['json_schema'])}"},
    {"grammar": "root ::= " + '"a"? ' * 4000},
]
"""A tenth of a second to a second each, most of it without the interpreter."""

BOUNDED: list[dict[str, Any]] = [
    {"regex": "(?i)(é?){3000}é{3000}"},
    {"regex": "[xy](a?){4000}a{4000}"},
    {"regex": "[xy]a{4000000}"},
    {"regex": "[xy](((a?){100}){100})" + "b?" * 490 + "z"},
    {"regex": "(((a?){40}){40}){40}"},
    {"regex": "(.*a){300}"},
    {"regex": "(.{0,50}a.{0,50}b){20}"},
    {"regex": "(a|b)*a(a|b){16}"},
    {"regex": r"(?i)(\p{L}?){1000}\p{L}{1000}"},
    {"regex": r"(\w+\s?){1,1000}"},
    {"regex": "|".join(f"word{number}" for number in range(6000))},
    {"json_schema": {"anyOf": [{"type": "integer"}, _string(allOf=_BIG)["json_schema"]]}},
    {"json_schema": {"enum": [f"v{number}" for number in range(6000)]}},
    {"json_schema": {"properties": {f"k{number}": {"type": "null"} for number in range(400)}}},
    {"json_schema": {"type": "object", "patternProperties": {"^(a?){900}a{900}$": {}}}},
    {"json_schema": {"type": "array", "items": {"$ref": "#"}, "minItems": 5, "maxItems": 5000}},
    {"grammar": 'start: s\ns: s s | "a"'},
    {"grammar": 'start: s\ns: s s s | s s | "a" | "b" | "c" | t\nt: s t | t s | "d"'},
    {"grammar": 'start: s\ns: s "a" s | s s | "a" | '},
    {"grammar": 'start: x{1,2000}\nx: "a"?'},
    {"grammar": "start: X\nX: /(.*a.{11})*/ & /(.*b.{7})*/ & /(.*c.{9})*/"},
    {"grammar": 'start: [x] y\nx[lazy]: /(a|b)*a(a|b){12}/\ny: "z"'},
    {
        "grammar": "start: r0\n"
        + "\n".join(f'r{n}: r{n + 1} "x"?' for n in range(900))
        + '\nr900: "a"'
    },
]
"""Each call is short, though a request may end with an error while it runs."""

ACCEPTED: list[tuple[str, str, str]] = [
    (r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}", "me@example.org", "me@example"),
    (r"\d{4}-\d{2}-\d{2}", "2024-02-29", "2024-2-29"),
    (r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", "0a1b2c3d-0000-1111-2222-0123456789ab", "0a-"),
    (r"https?://[^\s/$.?#].[^\s]*", "https://example.org/a?b=c", "ftp://x"),
    (r"([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|([0-9a-fA-F]{1,4}:){1,7}:", "fe80::", "fe80:"),
    (r"\+?[0-9 ()-]{7,20}", "+49 (30) 123-456", "12345"),
    (r".{1,2000}", "x" * 2000, "x" * 2001),
    (r'[^"]{0,500}', "é" * 500, '"'),
    (r"(\w+\s){1,100}", "a bc " * 50, "a bc"),
    (r"[a-z]{4000}", "q" * 4000, "q" * 3999),
    (r"(a?){40}a{40}", "a" * 60, "a" * 39),
    (r"((yes|no|maybe),? ?){1,50}", "yes, no maybe", "perhaps"),
    (r"\p{Lu}\p{L}{0,30}( \p{Lu}\p{L}{0,30}){0,3}", "Ärger Über", "ärger"),
    ("|".join(f"word{number}" for number in range(3000)), "word2999", "word3000"),
]
"""Expressions that people use, with a text that matches and one that does not."""
