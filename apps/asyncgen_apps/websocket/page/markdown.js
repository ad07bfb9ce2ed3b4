/* ---- Markdown: blocks and a few marks, built from text nodes. ---- */

const LIST = /^\s*([-*+]|\d{1,9}[.)])( +|$)/;
const HEADING = /^#{1,6} +(.*)$/;
const INLINE = /(`+)(.+?)\1|\*\*(?=\S)(.+?)\*\*|\*(?=\S)([^*\n]+?)\*/;

function inline(text) {
  const parts = [];
  for (let found; (found = INLINE.exec(text)); text = text.slice(found.index + found[0].length)) {
    parts.push(text.slice(0, found.index));
    if (found[2] !== undefined) parts.push(make("code", {}, found[2]));
    else if (found[3] !== undefined) parts.push(make("strong", {}, ...inline(found[3])));
    else parts.push(make("em", {}, ...inline(found[4])));
  }
  return [...parts, text];
}

/** The cells of a line of a table; an escaped pipe does not end one. */
function cells(line) {
  const parts = line.trim().replaceAll("\\|", "\0").replace(/^\||\|$/g, "").split("|");
  return parts.map((cell) => cell.trim().replaceAll("\0", "|"));
}

/** Whether the second line is a row of dashes, one for each cell of the first. */
function isTable([header, dashes]) {
  if (!dashes?.includes("|")) return false;
  const found = cells(dashes);
  return found.length === cells(header).length && found.every((cell) => /^:?-+:?$/.test(cell));
}

/** Where the last lines may become a table when more has come, what they would be by then. */
function begunTable(lines) {
  const [before = "", last] = [lines.at(-2), lines.at(-1)];
  if (isTable(lines) || LIST.test(lines[0]) || !/^\s*\|/.test(last)) return null;
  const isHeader = !before.trim().startsWith("|");
  if (!isHeader && /[^\s|:-]/.test(last)) return null;
  const header = isHeader ? last : before;
  return { from: lines.length - (isHeader ? 1 : 2), lines: [header, `|${"---|".repeat(cells(header).length)}`] };
}

/** Split at blank lines, headings and where a list or a table begins, but not inside fences. */
function blocks(text, growing) {
  const found = [];
  let lines = [], fence = false;
  const end = () => { if (lines.length) found.push(lines.join("\n")); lines = []; };
  const startTable = (from, table) => { lines.splice(from); end(); lines = table; };
  for (const line of (growing ? text.replace(/\n$/, "") : text).split("\n")) {
    const mark = /^\s*```/.test(line), heading = HEADING.test(line);
    if (!fence && lines.length && !LIST.test(lines[0]) && !isTable(lines) && isTable([lines.at(-1), line])) {
      startTable(lines.length - 1, [lines.at(-1), line]);
      continue;
    }
    if (!fence && (mark || heading || (LIST.test(line) && !LIST.test(lines[0])))) end();
    if (fence || mark || line.trim()) lines.push(line); else end();
    if (fence ? mark : heading) end();
    if (mark) fence = !fence;
  }
  const begun = growing && !fence && lines.length ? begunTable(lines) : null;
  if (begun) startTable(begun.from, begun.lines);
  end();
  return found;
}

function block(source) {
  const fence = /^\s*```[^\n]*\n?([\s\S]*?)(\n\s*```\s*)?$/.exec(source);
  if (fence) return make("pre", { tabIndex: 0 }, make("code", {}, fence[1]));
  const heading = HEADING.exec(source);
  if (heading) return make("h3", {}, ...inline(heading[1]));
  if (LIST.test(source)) {
    const items = [];
    for (const line of source.split("\n")) {
      if (LIST.test(line)) items.push(line.replace(LIST, "")); else items.push(`${items.pop()}\n${line.trim()}`);
    }
    const number = parseInt(source, 10);
    const list = make(number >= 0 ? "ol" : "ul", {}, ...items.map((item) => make("li", {}, ...inline(item))));
    if (number >= 0) list.start = number;
    return list;
  }
  const rows = source.split("\n");
  return isTable(rows) ? table(rows) : make("p", {}, ...inline(source));
}

/** A wide one scrolls in its own box. A row that is still short ends with the cell that grows. */
function table([header, dashes, ...rows]) {
  const sides = cells(dashes).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const row = (line, tag) => make("tr", {}, ...cells(line).slice(0, sides.length).map((cell, column) => make(tag, { className: sides[column] }, ...inline(cell))));
  const found = make("table", {}, make("thead", {}, row(header, "th")));
  if (rows.length) found.append(make("tbody", {}, ...rows.map((line) => row(line, "td"))));
  return make("div", { className: "table", tabIndex: 0, role: "group", ariaLabel: "Table" }, found);
}

/** Draw a text; blocks that did not change stay as they are, so that a long answer costs no more. */
function draw(element, text, growing) {
  const sources = blocks(text, growing);
  sources.forEach((source, number) => {
    const old = element.children[number];
    if (old?.source === source) return;
    const made = Object.assign(block(source), { source });
    if (!old) return element.append(made);
    const { scrollLeft } = old;
    old.replaceWith(made);
    made.scrollLeft = scrollLeft;
  });
  while (element.children.length > sources.length) element.lastChild.remove();
}
