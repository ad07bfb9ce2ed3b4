/* ---- Blocks of Markdown: split, then drawn; what did not change stays as it is on the screen. ---- */

const LIST = /^(\s*)([-*+]|\d{1,9}[.)])( +|$)/;
const HEADING = /^#{1,6} +(.*)$/;
const FENCE = /^\s*(`{3,}|~{3,})([^`]*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const NESTED = new Set(["quote", "list"]);
const MATHS = /^\s*(\$\$|\\\[)/;

const isOrdered = (line) => /^\s*\d/.test(line);
const indent = (line) => /^\s*/.exec(line)[0].length;

/** Whether a line closes the fence that another opened. */
function endsFence(line, opener) {
  const mark = FENCE.exec(opener)[1], found = FENCE.exec(line);
  return found !== null && found[1][0] === mark[0] && found[1].length >= mark.length && !found[2].trim();
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
  if (isTable(lines) || !/^\s*\|/.test(last)) return null;
  const isHeader = !before.trim().startsWith("|");
  if (!isHeader && /[^\s|:-]/.test(last)) return null;
  const header = isHeader ? last : before;
  return { from: lines.length - (isHeader ? 1 : 2), lines: [header, `|${"---|".repeat(cells(header).length)}`] };
}

/** Kind of the block that a line begins, if nothing is open. */
function kindOf(line) {
  if (FENCE.test(line)) return "fence";
  if (HEADING.test(line)) return "heading";
  if (QUOTE.test(line)) return "quote";
  if (RULE.test(line)) return "rule";
  if (LIST.test(line)) return "list";
  return MATHS.test(line) && isMaths(line) ? "maths" : "text";
}

/** Where the closer of a formula is in one of its lines, or -1; the first line has the opener too. */
function endOfMaths(line, opener, isFirst) {
  const [all, mark] = MATHS.exec(opener);
  return line.indexOf(mark === "$$" ? "$$" : "\\]", isFirst ? all.length : 0);
}

/** A formula has its lines for itself. */
function isMaths(line) {
  const end = endOfMaths(line, line, true);
  return end < 0 || !line.slice(end + 2).trim();
}

/** Whether a line goes on with an open list; `inner` is the fence that is open in the list. */
function staysInList(list, line) {
  if (list.inner) return true;
  if (indent(line) >= indent(list.lines[0]) + 2) return true;
  const kind = kindOf(line);
  if (kind === "list") return isOrdered(line) === isOrdered(list.lines[0]);
  return kind === "text" && list.lines.at(-1).trim() !== "";
}

/** Whether a line goes on with the open block. */
function staysIn(open, line) {
  if (open.kind === "fence") return true;
  if (open.kind === "list") return staysInList(open, line);
  if (open.kind === "quote") return QUOTE.test(line);
  if (open.kind === "maths") return true;
  const kind = kindOf(line);
  return kind === "text" || (kind === "rule" && line.trim()[0] === "-");
}

/** Split a text into {kind, source, start}; the last may be only `begun`: a table before its dashes. */
function blocks(text, growing) {
  const found = [];
  let open = null, at = 0;
  const end = () => {
    if (open) found.push({ kind: open.kind, source: open.kind === "fence" ? open.lines.join("\n") : open.lines.join("\n").trimEnd(), start: open.start, begun: open.begun });
    open = null;
  };
  const begin = (kind, lines, start) => { end(); open = { kind, lines, start }; };
  for (const line of (growing ? text.replace(/\n$/, "") : text).split("\n")) {
    const start = at;
    at += line.length + 1;
    if (!line.trim() && open?.kind !== "fence" && open?.kind !== "list") { end(); continue; }
    if (open?.kind === "text" && isTable([open.lines.at(-1), line])) {
      const header = open.lines.pop();
      if (!open.lines.length) open = null;
      begin("table", [header, line], start - header.length - 1);
      continue;
    }
    if (open && (open.kind === "table" ? kindOf(line) === "text" : !line.trim() || staysIn(open, line))) open.lines.push(line);
    else begin(kindOf(line), [line], start);
    if (open.kind === "list" && FENCE.test(line.replace(LIST, ""))) {
      const bare = line.replace(LIST, "");
      open.inner = open.inner ? (endsFence(bare, open.inner) ? null : open.inner) : bare;
    }
    const first = open.lines.length === 1;
    if (open.kind === "heading" || open.kind === "rule" || (open.kind === "fence" && !first && endsFence(line, open.lines[0])) || (open.kind === "maths" && endOfMaths(line, open.lines[0], first) >= 0)) end();
  }
  const begun = growing && open?.kind === "text" ? begunTable(open.lines) : null;
  if (begun) {
    const { start } = open;
    open.lines.splice(begun.from);
    if (!open.lines.length) open = null;
    begin("table", begun.lines, start);
    open.begun = true;
  }
  end();
  return found;
}

/** Draw a text into an element. What grows costs its last block only, of which the last line or item. */
function draw(element, text, growing) {
  const before = element.drawn;
  let keep = 0;
  if (before && text.startsWith(before.text)) {
    keep = Math.max(0, before.parts.length - 1);
    while (keep > 0 && before.parts[keep].start === before.parts[keep - 1].start) keep -= 1;
  }
  const from = keep ? before.parts[keep].start : 0;
  const depth = element.depth ?? 0;
  const rest = blocks(text.slice(from), growing).map((part) => ({ ...part, kind: depth >= DEEPEST && NESTED.has(part.kind) ? "text" : part.kind, start: part.start + from }));
  const parts = keep ? [...before.parts.slice(0, keep), ...rest] : rest;
  if (!before) element.replaceChildren();
  for (let number = keep; number < parts.length; number++) {
    const old = element.children[number], part = parts[number], known = before?.parts[number];
    const last = growing && number === parts.length - 1;
    if (old && known && known.source === part.source && known.kind === part.kind && !known.last) continue;
    if (old && known?.kind === part.kind && UPDATE[part.kind]?.(old, part.source, last)) continue;
    const made = MAKE[part.kind](part.source, last, depth + 1);
    if (old) old.replaceWith(made); else element.append(made);
  }
  while (element.children.length > parts.length) element.lastChild.remove();
  if (parts.length) parts.at(-1).last = growing;
  element.drawn = { text, parts };
}
