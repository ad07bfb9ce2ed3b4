"""Answers as the chat page draws them, in a headless Chromium."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.apps.websocket.relay import Relay
    from tests.apps.websocket.web_page import WebPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

PLAIN = """((element) => {
  const copy = element.cloneNode(true);
  for (const code of copy.querySelectorAll(".code")) {
    const made = document.createElement("pre");
    made.append(code.querySelector("code"));
    code.replaceWith(made);
  }
  for (const one of copy.querySelectorAll("a, .math")) {
    one.textContent = one.href ? `${one.getAttribute("href")}|${one.textContent}` : one.textContent;
    for (const name of one.getAttributeNames()) one.removeAttribute(name);
  }
  return copy.innerHTML;
})"""
"""Markup of an element, its code without the bar, its links as address and label."""


def test_markdown(wire: Callable[..., Relay], visit: Callable[..., WebPage]) -> None:
    page = visit(wire())
    page.ready()
    page.configure(max_new_tokens=1)
    page.ask("Hello")
    page.wait_done()
    source = (
        "# A *b*\nText **c** `d*e*`:\n- one\n- two\n  more\n\n3. x\n\n```py\na\n\nb<c\n```\nend *"
    )
    wanted = (
        "<h3>A <em>b</em></h3><p>Text <strong>c</strong> <code>d*e*</code>:</p>"
        "<ul><li>one</li><li>two\nmore</li></ul>"
        '<ol start="3"><li>x</li></ol><pre><code>a\n\nb&lt;c</code></pre><p>end *</p>'
    )
    draw = """([element, source]) => {
      for (let end = 0; end <= source.length; end++) draw(element, source.slice(0, end));
      return plain(element);
    }""".replace("plain", PLAIN)
    found = page.page.evaluate(draw, [page.answers.last.element_handle(), source])
    assert found == wanted


ONE = '<div tabindex="0" role="group" aria-label="Table" class="table"><table>{}</table></div>'


def _table(*rows: str) -> str:
    """The drawn table: cells apart by ``|``, one of them with its class before a colon."""

    def row(line: str, tag: str) -> str:
        made = ""
        for cell in line.split("|"):
            side, _, text = cell.rpartition(":")
            made += f'<{tag} class="{side}">{text}</{tag}>'
        return f"<tr>{made}</tr>"

    head, *body = rows
    below = f"<tbody>{''.join(row(line, 'td') for line in body)}</tbody>" if body else ""
    return ONE.format(f"<thead>{row(head, 'th')}</thead>{below}")


DRAWN = """([source, growing]) => {
  const element = make("div");
  draw(element, source, growing);
  for (const one of element.querySelectorAll(".table")) {
    // The order of attributes in text is that of their making.
    const { role, ariaLabel } = one;
    for (const name of [...one.getAttributeNames()]) one.removeAttribute(name);
    Object.assign(one, { tabIndex: 0, role, ariaLabel, className: "table" });
  }
  return plain(element);
}""".replace("plain", PLAIN)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("|a|b|\n|-|-:|\n| 1 | 2 |", _table("a|right:b", "1|right:2")),
        ("a | b\n:-: | :--\n1 | **2**", _table("center:a|b", "center:1|<strong>2</strong>")),
        ("|a|b|\n|-|-|\n|x\\|y|`p\\|q`|", _table("a|b", "x&#124;y|<code>p&#124;q</code>")),
        ("|a|b|\n|-|-|\n|1|\n|1|2|3|", _table("a|b", "1", "1|2")),
        ("Of\n|a|\n|-|\n|1|\n# H", f"<p>Of</p>{_table('a', '1')}<h3>H</h3>"),
        ("|a|\n|-|\n- one", f"{_table('a')}<ul><li>one</li></ul>"),
        ("|a|b|\n|-|", "<p>|a|b|\n|-|</p>"),
        ("a | b\nc | d", "<p>a | b\nc | d</p>"),
        ("```\n|a|\n|-|\n```", "<pre><code>|a|\n|-|</code></pre>"),
        ("a\n---", "<p>a\n---</p>"),
    ],
)
def test_tables(drawing_page: WebPage, source: str, wanted: str) -> None:
    assert drawing_page.page.evaluate(DRAWN, [source, False]) == wanted.replace("&#124;", "|")


def test_a_table_that_is_half_here_is_a_table_already(drawing_page: WebPage) -> None:
    source = "Of:\n\n| Fox | Age |\n| :--- | ---: |\n| Red | 3 |\n| Grey | 4 |\n"
    begin = source.index("|")
    for end in range(begin + 1, len(source) + 1):
        drawn = drawing_page.page.evaluate(DRAWN, [source[:end], True])
        assert drawn.count("<table>") == 1 and drawn.count("<p>") == 1, source[:end]
        assert "--" not in drawn and "|" not in drawn, source[:end]
    assert drawn == f"<p>Of:</p>{_table('Fox|right:Age', 'Red|right:3', 'Grey|right:4')}"
    for text in ("| one\n| two", "| one\ntwo", "|-|\n|-|\nx"):
        last = drawing_page.page.evaluate(DRAWN, [text + "\n\n", True])
        assert last == drawing_page.page.evaluate(DRAWN, [text, False]), "no table after all"


def test_wide_table_scrolls_inside_its_box(drawing_page: WebPage) -> None:
    wide = "\n".join(["|" + "heading |" * 12, "|" + "-|" * 12, "|" + "some words here |" * 12])
    place = drawing_page.page.evaluate_handle("turns.appendChild(make('li', {}, make('div')))")
    try:
        drawing_page.page.evaluate(
            "([item, text]) => { turns.hidden = false; item.firstChild.className = 'text'; "
            "draw(item.firstChild, text); }",
            [place, wide],
        )
        sizes = drawing_page.page.evaluate(
            "[document.documentElement, main, main.querySelector('.table')]"
            ".map((one) => one.scrollWidth - one.clientWidth)"
        )
        assert sizes[:2] == [0, 0] and sizes[2] > 300
    finally:
        place.evaluate("(item) => { item.remove(); turns.hidden = true; }")


LONG_LIST = "".join(f"- Item {number} **is** here.\n" for number in range(700))
KINDS = {
    "prose": "Some words about a *fox* and `code`, in one paragraph after another.\n\n" * 300,
    "one paragraph": "Some words about a *fox* and `code` that never end, ever. " * 350,
    "code": "```py\n" + "x = [number for number in range(10)]\n" * 540,
    "list": LONG_LIST,
    "quote": "> " + LONG_LIST.replace("\n", "\n> "),
    "table": "| a | b |\n|---|---|\n" + "| one cell | another **cell** |\n" * 660,
}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (
            "> a\n> - b\n>\n> c\nd",
            "<blockquote><p>a</p><ul><li>b</li></ul><p>c</p></blockquote><p>d</p>",
        ),
        ("> > a", "<blockquote><blockquote><p>a</p></blockquote></blockquote>"),
        (
            "1. a\n   - b\n     - c\n2. d\n\n3. e",
            (
                '<ol start="1"><li><p>a</p><ul><li><p>b</p><ul><li>c</li></ul></li></ul></li>'
                "<li>d</li><li>e</li></ol>"
            ),
        ),
        ("- a\n\n  b\n\nc", "<ul><li><p>a</p><p>b</p></li></ul><p>c</p>"),
        (
            "1. a\n   ```py\n   # x\n\n     y\n   ```\n2. b",
            '<ol start="1"><li><p>a</p><pre><code># x\n\n  y</code></pre></li><li>b</li></ol>',
        ),
        ("````md\n```\na\n```\n````\nb", "<pre><code>```\na\n```</code></pre><p>b</p>"),
        ("a\n\n---\nb", "<p>a</p><hr><p>b</p>"),
        (
            "__a__ _b_ ~~c~~ d_e_f 2 * 3 * 4",
            "<p><strong>a</strong> <em>b</em> <del>c</del> d_e_f 2 * 3 * 4</p>",
        ),
        ("***a*** \\*b\\* a<br>b", "<p><strong><em>a</em></strong> *b* a<br>b</p>"),
        ('[a *b*](http://x.y/z_(q) "t")', "<p><a>http://x.y/z_(q)|a b</a></p>"),
        ("(see https://x.y/a_b_c.)", "<p>(see <a>https://x.y/a_b_c|https://x.y/a_b_c</a>.)</p>"),
        ("<mailto:a@b.c>", "<p><a>mailto:a@b.c|mailto:a@b.c</a></p>"),
        ("![A fox](https://x.y/fox.png)", "<p><a>https://x.y/fox.png|A fox</a></p>"),
        ("[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>"),
        ("[a]( java\tscript:alert(1))", "<p>[a]( java\tscript:alert(1))</p>"),
        ("[a](data:text/html,b) [c](/d)", "<p>[a](data:text/html,b) [c](/d)</p>"),
        (
            "$a_1 * b_2 * c$ \\(x^*y*\\)",
            "<p><span>$a_1 * b_2 * c$</span> <span>\\(x^*y*\\)</span></p>",
        ),
        ("It is $5 and $10 a *day*", "<p>It is $5 and $10 a <em>day</em></p>"),
        ("$$\na_1\n= *b*\n$$\nc", "<div>$$\na_1\n= *b*\n$$</div><p>c</p>"),
        ("\\[ a*b*c \\]", "<div>\\[ a*b*c \\]</div>"),
    ],
)
def test_blocks_and_marks(drawing_page: WebPage, source: str, wanted: str) -> None:
    assert drawing_page.page.evaluate(DRAWN, [source, False]) == wanted


def test_growing_ends_as_drawn_at_once(drawing_page: WebPage) -> None:
    source = (
        "# A\nb | c\n:-- | --\n1 | *2*\n3|4\n> q\n> 1. r\n>    - s\n>\n> ~~~\n> t\n> ~~~\n\n"
        "- u\n- | v |\n  |---|\n  | w |\n\n  x\n- ```js\n  y\n  ```\n"
        "$$\nz\n$$\n| no table\n\n**end**"
    )
    script = """(source) => {
      const grown = make("div");
      for (let end = 0; end <= source.length; end++) {
        const text = source.slice(0, end), once = make("div");
        draw(grown, text, true);
        draw(once, text, true);
        if (grown.innerHTML !== once.innerHTML) return [text, grown.innerHTML, once.innerHTML];
      }
      const end = make("div");
      draw(end, source, false);
      draw(grown, source, false);
      return grown.innerHTML === end.innerHTML ? null : [grown.innerHTML, end.innerHTML];
    }"""
    assert drawing_page.page.evaluate(script, source) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_piece_of_a_long_answer_makes_few_elements(drawing_page: WebPage, kind: str) -> None:
    """Of 20,000 characters, each piece changes what is at the end: elements are counted."""
    script = """(source) => {
      const place = turns.appendChild(make("li", {}, make("div", { className: "text" })));
      turns.hidden = false;
      const element = place.firstChild, create = document.createElement;
      let made = 0, most = 0;
      document.createElement = function (tag) { made += 1; return create.call(document, tag); };
      const began = performance.now();
      let text = "", pieces = 0;
      for (; text.length < source.length; pieces++) {
        made = 0;
        text += source.slice(text.length, text.length + 5);
        draw(element, text, true);
        most = Math.max(most, made);
      }
      const ms = (performance.now() - began) / pieces;
      delete document.createElement;
      const drawn = element.innerHTML, once = make("div");
      draw(once, text, true);
      place.remove();
      turns.hidden = true;
      return [most, ms, drawn === once.innerHTML];
    }"""
    most, ms, same = drawing_page.page.evaluate(script, KINDS[kind][:20_000])
    print(f"{kind}: {ms:.3f} ms a piece")  # noqa: T201
    assert same
    assert most <= (800 if kind == "one paragraph" else 20)


@pytest.mark.parametrize(
    "piece",
    [
        "`",
        "*",
        "**a ",
        "[",
        "](",
        "[a](",
        "<http://",
        "$",
        "\\(",
        "_",
        "~~",
        "> ",
        "- ",
        "``a` ",
        "a |",
    ],
)
def test_hostile_texts_take_linear_time(drawing_page: WebPage, piece: str) -> None:
    script = """(text) => {
      const began = performance.now();
      draw(make("div"), text, false);
      return performance.now() - began;
    }"""
    assert drawing_page.page.evaluate(script, piece * (20_000 // len(piece))) < 1000


def test_an_answer_fetches_nothing(drawing_page: WebPage) -> None:
    heard: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.path)

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        answer = (
            f"![a]({url}/image) ![b]({url}/image.png) <img src='{url}/tag'> "
            f"[c]({url}/link) {url}/bare\n\n"
            f"<style>@import '{url}/style'; * {{ background: url({url}/css) }}</style>\n\n"
            f"<video src='{url}/video' autoplay></video><iframe src='{url}/frame'></iframe>\n\n"
            f"<link rel=stylesheet href='{url}/sheet'><script src='{url}/script'></script>\n\n"
            f"| ![d]({url}/cell) |\n|---|\n\n> - ![e]({url}/nested)\n"
        )
        script = """(answer) => {
          const place = turns.appendChild(make("li", {}, make("div", { className: "text" })));
          turns.hidden = false;
          const text = place.firstChild;
          for (let end = 0; end <= answer.length; end += 7) draw(text, answer.slice(0, end), true);
          draw(text, answer, false);
          const links = [...place.querySelectorAll("a")];
          const found = links.map((one) => [one.rel, one.target, one.protocol]);
          const loading = "img, style, video, iframe, link, script, [style]";
          const loads = place.querySelectorAll(loading).length;
          return [JSON.stringify(found), loads];
        }"""
        links, loads = drawing_page.page.evaluate(script, answer)
        assert loads == 0
        assert {tuple(one) for one in json.loads(links)} == {
            ("noopener noreferrer nofollow", "_blank", "http:")
        }
        # The policy holds even for markup that did enter the page.
        forced = """(url) => {
          const image = new Image();
          image.src = `${url}/forced`;
          document.body.append(image);
          const video = document.createElement("video");
          video.src = `${url}/forced-video`;
          document.body.append(video);
          setTimeout(() => { image.remove(); video.remove(); }, 200);
          return fetch(`${url}/fetched`).then(() => "fetched", () => "refused");
        }"""
        expected = len(drawing_page.errors)
        assert drawing_page.page.evaluate(forced, url) == "refused"
        time.sleep(0.5)
        drawing_page.page.evaluate("turns.replaceChildren(); turns.hidden = true")
        del drawing_page.errors[expected:]
        assert heard == []
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_thoughts_are_folded(drawing_page: WebPage) -> None:
    script = """(content) => {
      const { thought, reply, isThinking } = splitThinking({ content });
      return [thought, reply, isThinking];
    }"""
    for content, wanted in {
        "<th": ["", "", True],
        "<think>\nA <b>": ["A <b>", "", True],
        "<think>A</thi": ["A", "", True],
        "<think>A</think>\n\nB": ["A", "B", False],
        "A\n</think>B": ["A", "B", False],
        "A <think>B</think>": ["", "A <think>B</think>", False],
        "A": ["", "A", False],
    }.items():
        assert drawing_page.page.evaluate(script, content) == wanted, content
    place = """() => {
      const content = "<think>A\\nB</think>C";
      chat.turns = [{ role: "user", content: "Q" }, { role: "assistant", content }];
      drawAll();
    }"""
    page = drawing_page.page
    page.evaluate(place)
    thought = page.locator("#turns details.thought")
    assert thought.locator("summary").inner_text() == "Thoughts"
    assert not thought.locator("div").is_visible()
    thought.locator("summary").press("Enter")
    assert thought.locator("div").inner_text() == "A\nB"
    assert drawing_page.answers.last.inner_text() == "C"
    page.evaluate("drawTurn(1)")
    assert thought.locator("div").is_visible(), "it stays unfolded when it is drawn anew"
    page.evaluate("chat.turns = []; drawAll()")


def test_code_is_copied(drawing_page: WebPage) -> None:
    drawing_page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = drawing_page.page
    page.evaluate(
        """() => {
          const content = "```py\\na < b\\n```";
          chat.turns = [{ role: "user", content: "Q" }, { role: "assistant", content }];
          drawAll();
        }"""
    )
    page.get_by_role("button", name="Copy this code").click()
    page.get_by_text("Copied", exact=True).first.wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "a < b"
    page.evaluate("chat.turns = []; drawAll()")
