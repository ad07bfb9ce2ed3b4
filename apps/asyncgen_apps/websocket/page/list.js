/* ---- The list of conversations, and what is deleted from it until the page is left. ---- */

/** Deleted ones, each with what was deleted at once with it. */
let deleted = [];

const when = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

async function openList() {
  $("list").showModal();
  await drawList();
  $("conversations").querySelector("button")?.focus();
}

/** Draw it; the focus stays where it is asked for, else where it was. */
async function drawList(focused = document.activeElement?.dataset.key) {
  let titles;
  try { titles = await library.list(); } catch (error) {
    $("no-conversations").textContent = `This browser keeps no conversations: ${error.message}`;
    $("no-conversations").hidden = false;
    return;
  }
  const rows = [...deleted.map(deletedRow), ...titles.map(titleRow)];
  $("conversations").replaceChildren(...rows);
  $("no-conversations").textContent = "No conversation yet.";
  $("no-conversations").hidden = rows.length > 0;
  $("delete-all").hidden = titles.length < 2;
  $("delete-all").onclick = () => remove(titles.map((one) => one.id), `${many(titles.length, "conversation")}`);
  const buttons = [...$("conversations").querySelectorAll("button")];
  (focused && (buttons.find((one) => one.dataset.key === focused) ?? buttons[0] ?? $("close-list")))?.focus();
}

function titleRow({ id, title, changed, count }) {
  const open = make("button", { className: "title", type: "button" }, make("span", {}, title), make("small", {}, `${when.format(changed)} · ${many(Math.ceil(count / 2), "question")}`));
  open.dataset.key = `open ${id}`;
  if (id === chat.id) open.ariaCurrent = "true";
  open.onclick = () => { $("list").close(); openConversation(id); };
  const trash = make("button", { className: "tool", type: "button", title: "Delete", ariaLabel: `Delete “${title}”` }, icon("delete"));
  trash.dataset.key = `delete ${id}`;
  trash.onclick = () => remove([id], `“${title}”`);
  return make("li", {}, open, trash);
}

function deletedRow(one) {
  const undo = make("button", { className: "undo", type: "button", ariaLabel: `Undo: keep ${one.name}` }, "Undo");
  undo.dataset.key = `undo ${one.records[0].id}`;
  undo.onclick = async () => {
    try { await library.restore(one.records); } catch (error) { return showKeepProblem(error); }
    deleted = deleted.filter((other) => other !== one);
    speech.say("Kept.");
    if (!chat.turns.length && one.current) await openConversation(one.current);
    drawList(`open ${one.records[0].id}`);
  };
  return make("li", { className: "deleted" }, make("span", {}, `Deleted ${one.name}`), undo);
}

async function remove(ids, name) {
  const current = ids.includes(chat.id) ? chat.id : null;
  if (current) startNew();
  let records;
  try { records = await library.remove(ids); } catch (error) { return showKeepProblem(error); }
  if (!records.length) return drawList("close");
  deleted = [{ name, records, current }, ...deleted].slice(0, 10);
  speech.say(`Deleted ${name}.`);
  drawList(`undo ${records[0].id}`);
}

$("open-list").onclick = openList;
$("close-list").onclick = () => $("list").close();
$("list").onclose = () => question.focus();
