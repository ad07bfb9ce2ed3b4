/* ---- Marks within a line, built from text nodes. A closer is looked for once: time is linear. ---- */

const SPECIAL = /[\\`*_~[<$]|!\[|https?:\/\//g;
const ESCAPED = /[\\`*_{}[\]#+\-.!|>~$<]/;
const ADDRESS = /https?:\/\/[^\s<>"`]+/y;
const ANGLED = /<(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)>/y;
const BREAK = /<br ?\/?>/iy;
const DEEPEST = 6;

/** Nodes of a text: code, emphasis, links and maths; everything else is text. */
function inline(text, depth = 0, linked = false) {
  const nodes = [], line = { text, depth, linked, missing: new Set(), brackets: null, ticks: null };
  let plain = 0, at = 0;
  if (depth > DEEPEST) return [text];
  for (let found; (SPECIAL.lastIndex = at, found = SPECIAL.exec(text));) {
    const [node, end] = special(line, found[0], found.index) ?? [];
    at = end ?? found.index + found[0].length;
    if (!node) continue;
    if (found.index > plain) nodes.push(text.slice(plain, found.index));
    nodes.push(node);
    plain = at;
  }
  if (plain < text.length || !nodes.length) nodes.push(text.slice(plain));
  return nodes;
}

/** What begins at a place: [node, end]; [null, end] to go on there; nothing where it means nothing. */
function special(line, mark, at) {
  const { text } = line, next = text[at + 1] ?? "";
  if (mark === "\\") {
    if (next === "(" || next === "[") return maths(line, at, text.slice(at, at + 2), next === "(" ? "\\)" : "\\]");
    return ESCAPED.test(next) ? [next, at + 2] : null;
  }
  if (mark === "`") return code(line, at);
  if (mark === "$") return maths(line, at, next === "$" ? "$$" : "$", next === "$" ? "$$" : "$");
  if (mark === "[" || mark === "![") return link(line, at + mark.length - 1);
  if (mark === "<") {
    const angled = sticky(ANGLED, text, at);
    if (angled) return [anchor(line, angled[1], [angled[1]]), at + angled[0].length];
    const end = sticky(BREAK, text, at);
    return end && [make("br"), at + end[0].length];
  }
  if (mark.startsWith("http")) return bareLink(line, at);
  return emphasis(line, at, next === mark ? mark + mark : mark);
}

function sticky(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

/** Where a closer stands, if anywhere; what is missing once is missing from there on. */
function closer(line, mark, from) {
  if (line.missing.has(mark)) return -1;
  const found = line.text.indexOf(mark, from);
  if (found < 0) line.missing.add(mark);
  return found;
}

function emphasis(line, at, mark) {
  const { text } = line, from = at + mark.length;
  if (mark === "~" || (mark[0] === "_" && /\w/.test(text[at - 1] ?? ""))) return [null, from];
  let end = closer(line, mark, from + 1);
  if (end < 0 || /\s/.test(text[from]) || /\s/.test(text[end - 1])) return [null, from];
  if (mark === "**" && text[from] === "*" && text[end + 2] === "*") end += 1;
  const inside = text.slice(from, end);
  if (inside.includes("\n") || (mark[0] === "_" && /\w/.test(text[end + mark.length] ?? ""))) return [null, from];
  const tag = { "**": "strong", "__": "strong", "~~": "del" }[mark] ?? "em";
  return [make(tag, {}, ...inline(inside, line.depth + 1, line.linked)), end + mark.length];
}

/** A run of backticks goes to the next run that is as long. */
function code(line, at) {
  if (!line.ticks) {
    line.ticks = new Map();
    for (const { 0: run, index } of line.text.matchAll(/`+/g)) {
      if (!line.ticks.has(run.length)) line.ticks.set(run.length, []);
      line.ticks.get(run.length).push(index);
    }
  }
  let size = 1;
  while (line.text[at + size] === "`") size += 1;
  const places = line.ticks.get(size) ?? [];
  while (places.length && places[0] <= at) places.shift();
  if (!places.length) return [null, at + size];
  const inside = line.text.slice(at + size, places[0]).replace(/^ (.*[^ ].*) $/s, "$1");
  return [make("code", {}, inside), places[0] + size];
}

/** Formulas stay as they were written: no mark in them means anything. */
function maths(line, at, opening, closing) {
  const { text } = line, from = at + opening.length, end = closer(line, closing, from + 1);
  if (end < 0) return [null, from];
  // "$5 and $10" are prices.
  if (opening === "$" && (/\s/.test(text[from]) || /\s/.test(text[end - 1]) || /\d/.test(text[end + 1] ?? ""))) return [null, from];
  return [make("span", { className: "math" }, text.slice(at, end + closing.length)), end + closing.length];
}

/** `[label](address "title")`; an image is a link too, for nothing is fetched by itself. */
function link(line, at) {
  const { text } = line;
  line.brackets ??= matching(text);
  const close = line.brackets.get(at);
  if (close === undefined || text[close + 1] !== "(") return null;
  const found = sticky(/\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\)){1,2000})>?(?:\s+(?:"[^"\n]{0,300}"|'[^'\n]{0,300}'))?\s*\)/y, text, close + 1);
  if (!found || !isSafe(found[1])) return null;
  const label = text.slice(at + 1, close) || found[1];
  return [anchor(line, found[1], inline(label, line.depth + 1, true)), close + 1 + found[0].length];
}

/** Places of brackets, each with that of the one that closes it. */
function matching(text) {
  const found = new Map(), open = [];
  for (const { 0: bracket, index } of text.matchAll(/[[\]]/g)) {
    if (bracket === "[") open.push(index); else if (open.length) found.set(open.pop(), index);
  }
  return found;
}

function bareLink(line, at) {
  if (/\w/.test(line.text[at - 1] ?? "")) return null;
  let href = sticky(ADDRESS, line.text, at)?.[0] ?? "", end = href.length;
  // What ends a sentence or a bracket around it is not part of an address.
  while (/[.,;:!?'"*_~\]]/.test(href[end - 1]) || (href[end - 1] === ")" && !href.includes("("))) end -= 1;
  href = href.slice(0, end);
  return isSafe(href) ? [anchor(line, href, [href]), at + href.length] : null;
}

function isSafe(href) {
  try { return ["http:", "https:", "mailto:"].includes(new URL(href).protocol); } catch { return false; }
}

function anchor(line, href, children) {
  if (line.linked) return make("span", {}, ...children);
  return make("a", { href, target: "_blank", rel: "noopener noreferrer nofollow", title: href }, ...children);
}
