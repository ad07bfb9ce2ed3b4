/* ---- Which conversation is on the screen, and what becomes of the others. ---- */

/** For all tabs, and for later. */
function keep() {
  keptAt = Date.now();
  if (chat.turns.length) library.keep(chat.id, chat.turns);
}

function wasKept(id) {
  if (id !== chat.id) return;
  chat.revision = library.revisions.get(id);
  saveSoon();
}

/** Another tab went on with this conversation otherwise: both are kept. */
function wasCopied(id, copy) {
  if (id !== chat.id) return;
  chat.id = copy;
  showNotice("Another tab went on with this conversation. Here it goes on as a copy.");
}

/** Another tab kept or deleted a conversation. */
async function wasChanged(id) {
  if ($("list").open) drawList();
  const isOurs = () => id === chat.id && !chat.live && !library.isPending(id) && !turns.querySelector("form");
  if (!isOurs()) return;
  const found = await library.get(id).catch(() => undefined);
  if (!found || !isOurs() || library.revisions.get(id) === found.revision) return;
  library.revisions.set(id, found.revision);
  Object.assign(chat, { turns: found.turns, before: null, revision: found.revision });
  save();
  drawAll();
}

/** End what is under way here, as Stop does. */
function leave() {
  if (!chat.live) return;
  abandon();
  finish({ figures: summary({ finish_reason: "cancelled" }) });
}

/** Put another conversation on the screen. */
function enter(id, turns, revision) {
  Object.assign(chat, { id, turns, live: null, before: null, revision });
  hideNotice();
  follow = true;
  save();
  drawAll();
}

function startNew() {
  leave();
  enter(newId(), [], undefined);
}

async function openConversation(id) {
  if (id === chat.id && chat.turns.length) return;
  let found;
  try { found = await library.get(id); } catch (error) { return showKeepProblem(error); }
  if (!found) return showNotice("This conversation was deleted in another tab.");
  leave();
  library.revisions.set(id, found.revision);
  enter(id, found.turns, found.revision);
  question.focus();
}

/** Ask another question instead of one; what was said since is replaced. */
function resend(number, text) {
  const before = chat.turns;
  chat.turns = before.slice(0, number);
  while (turns.children.length > number) turns.lastChild.remove();
  ask(text);
  chat.before = before;
  save();
  offerUndo();
}

function undoEdit() {
  if (chat.live) abandon();
  enter(chat.id, chat.before, chat.revision);
  keep();
  question.focus();
}
