/* ---- Elements of blocks. MAKE builds one; UPDATE changes one in place, or returns false. ---- */

/** Lines of a fence, without its marks. */
function fenced(source) {
  const [opener, ...lines] = source.split("\n");
  if (lines.length && endsFence(lines.at(-1), opener)) lines.pop();
  const space = indent(opener);
  const strip = space ? (line) => line.slice(Math.min(space, indent(line))) : (line) => line;
  return { language: FENCE.exec(opener)[2].trim().split(/\s/)[0].slice(0, 30), code: lines.map(strip).join("\n") };
}

/** Items of a list, without their marks and their indent. */
function items(source) {
  const lines = source.split("\n"), base = indent(lines[0]), found = [];
  let width = 0;
  for (const line of lines) {
    const mark = LIST.exec(line);
    if (mark && (indent(line) < base + 2 || !found.length)) {
      width = base + mark[2].length + Math.min(mark[3].length || 1, 4);
      found.push([line.slice(mark[0].length)]);
    } else {
      found.at(-1).push(line.slice(Math.min(width, indent(line))));
    }
  }
  return found.map((item) => item.join("\n").trimEnd());
}

/** An item of one paragraph holds its text itself. */
function drawItem(item, source, growing) {
  const parts = blocks(source, growing);
  if (parts.length > 1 || (parts.length === 1 && parts[0].kind !== "text")) return draw(item, source, growing);
  item.drawn = undefined;
  item.replaceChildren(...(parts.length ? inline(parts[0].source) : []));
}

function quoted(source) { return source.split("\n").map((line) => line.replace(QUOTE, "")).join("\n"); }

/** Alignment of each column. */
function sidesOf(dashes) {
  return cells(dashes).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
}

/** A row that is still short ends with the cell that grows. */
function row(line, tag, sides) {
  const made = cells(line).slice(0, sides.length).map((cell, column) => make(tag, { className: sides[column] }, ...inline(cell)));
  return make("tr", {}, ...made);
}

/** Draw children by their sources: those that are the same stay. */
function drawEach(parent, sources, makeOne, update = () => false) {
  parent.sources ??= [];
  sources.forEach((source, number) => {
    const old = parent.children[number], last = number === sources.length - 1;
    if (old && parent.sources[number] === source && !last && number < parent.sources.length - 1) return;
    if (old && update(old, source, last)) return;
    const made = makeOne(source, last);
    if (old) old.replaceWith(made); else parent.append(made);
  });
  while (parent.children.length > sources.length) parent.lastChild.remove();
  parent.sources = sources;
}

/** A button that copies, and says so. */
function copyButton(name, read) {
  const button = make("button", { className: "tool", type: "button", title: "Copy", ariaLabel: name }, icon("copy"));
  button.onclick = async () => {
    try { await navigator.clipboard.writeText(read()); speech.say("Copied."); button.replaceChildren("Copied"); }
    catch { button.replaceChildren("Not allowed"); }
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  };
  return button;
}

const UPDATE = {
  fence(element, source) {
    const { language, code } = fenced(source), text = element.querySelector("code").firstChild;
    if (element.language !== language || !text || !code.startsWith(text.data)) return false;
    if (code.length > text.length) text.appendData(code.slice(text.length));
    return true;
  },
  list(list, source, growing) {
    const number = parseInt(source, 10);
    if ((list.tagName === "OL") !== number >= 0 || (number >= 0 && list.start !== number)) return false;
    const update = (item, text, last) => { drawItem(item, text, growing && last); return true; };
    drawEach(list, items(source), (text, last) => { const item = Object.assign(make("li"), { depth: list.depth }); update(item, text, last); return item; }, update);
    return true;
  },
  quote(element, source, growing) { draw(element, quoted(source), growing); return true; },
  table(element, source) {
    const [header, dashes, ...rows] = source.split("\n"), sides = sidesOf(dashes), found = element.firstChild;
    // A header that grows has other sides in the next picture.
    if (found.header !== `${header}\n${sides}`) {
      found.header = `${header}\n${sides}`;
      found.replaceChildren(make("thead", {}, row(header, "th", sides)));
    }
    if (rows.length && !found.tBodies.length) found.append(make("tbody"));
    if (rows.length) drawEach(found.tBodies[0], rows, (line) => row(line, "td", sides)); else found.tBodies[0]?.remove();
    return true;
  },
};

const MAKE = {
  text: (source) => make("p", {}, ...inline(source)),
  heading: (source) => make("h3", {}, ...inline(source.replace(/^#+ */, ""))),
  rule: () => make("hr"),
  maths: (source) => make("div", { className: "math", tabIndex: 0, role: "group", ariaLabel: "Formula" }, source.trim()),
  quote(source, growing, depth) {
    const made = Object.assign(make("blockquote"), { depth });
    UPDATE.quote(made, source, growing);
    return made;
  },
  fence(source) {
    const { language, code } = fenced(source), inside = make("code", {}, document.createTextNode(code));
    const bar = make("div", { className: "bar" }, make("span", {}, language));
    if (navigator.clipboard) bar.append(copyButton("Copy this code", () => inside.textContent));
    const pre = make("pre", { tabIndex: 0, role: "group", ariaLabel: language ? `Code, ${language}` : "Code" }, inside);
    return Object.assign(make("div", { className: "code" }, bar, pre), { language });
  },
  list(source, growing, depth) {
    const number = parseInt(source, 10), made = Object.assign(make(number >= 0 ? "ol" : "ul"), { depth });
    if (number >= 0) made.start = number;
    UPDATE.list(made, source, growing);
    return made;
  },
  table(source) {
    const made = make("div", { className: "table", tabIndex: 0, role: "group", ariaLabel: "Table" }, make("table"));
    UPDATE.table(made, source);
    return made;
  },
};
