/* ---- What is on the screen. ---- */

const main = $("main"), turns = $("turns"), question = $("question");
let follow = true, drawing = 0;

/** Draw a turn anew, in its place or at the end. */
function drawTurn(number) {
  const turn = chat.turns[number];
  const item = make("li", {}, make("h2", { className: "sr", textContent: turn.role === "user" ? "You" : "Answer" }));
  if (turn.role === "user") {
    const edit = make("button", { className: "tool edit", type: "button", title: "Edit", ariaLabel: "Edit this message", hidden: Boolean(chat.live) }, icon("edit"));
    edit.onclick = () => editTurn(item, number);
    item.append(make("div", { className: "user" }, turn.content), make("div", { className: "foot" }, edit));
  } else {
    item.append(make("details", { className: "thought", open: turns.children[number]?.querySelector(".thought")?.open ?? false },
      make("summary"), make("div", {}, document.createTextNode(""))), make("div", { className: "text" }));
    drawAnswer(item, turn, turn === (chat.live && answer()));
    if (turn.problem) item.append(make("p", { className: "problem" }, turn.problem));
    item.append(foot(turn, number));
  }
  const old = turns.children[number];
  if (old) old.replaceWith(item); else turns.append(item);
}

/** Reasoning folded, the reply below. */
function drawAnswer(item, turn, growing) {
  const { thought, reply, isThinking } = splitThinking(turn), details = item.querySelector(".thought");
  details.hidden = !thought;
  details.firstChild.textContent = isThinking && growing ? "Thinking" : "Thoughts";
  const text = details.lastChild.firstChild;
  if (thought.startsWith(text.data)) text.appendData(thought.slice(text.length)); else text.data = thought;
  draw(item.querySelector(".text"), reply, growing);
}

/** Figures, and what can be done with an answer. */
function foot(turn, number) {
  const last = number === chat.turns.length - 1;
  const found = make("div", { className: "foot" }, make("span", { className: "figures" }, turn.figures ?? (turn.unfinished ? "unfinished" : "")));
  if (last && chat.live) return found;
  if (turn.content && navigator.clipboard) found.append(copyButton("Copy this answer", () => splitThinking(turn).reply));
  if (last) {
    const again = make("button", { className: "tool again", type: "button", title: "Try again", ariaLabel: "Try again" }, icon("again"));
    if (turn.problem || !turn.content) again.append("Try again");
    again.onclick = () => {
      chat.turns[number] = { role: "assistant", content: "" };
      chat.before = null;
      hideNotice();
      begin();
    };
    found.append(again);
  }
  return found;
}

/** A question in a box, to be sent again. */
function editTurn(item, number) {
  const text = make("textarea", { value: chat.turns[number].content, ariaLabel: "Edit message", rows: 1 });
  const cancel = make("button", { type: "button" }, "Cancel"), send = make("button", { type: "submit", className: "main" }, "Send");
  const note = make("p", { className: "note" }, number < chat.turns.length - 2 ? "What was said after it is replaced." : "Its answer is replaced.");
  const box = make("form", { className: "editing" }, text, note, make("div", { className: "row" }, cancel, send));
  const end = () => { drawTurn(number); turns.children[number].querySelector(".edit").focus(); };
  cancel.onclick = end;
  box.onsubmit = (event) => {
    event.preventDefault();
    if (!text.value.trim() || chat.live) return;
    resend(number, text.value.trim());
    question.focus();
  };
  text.oninput = () => fit(text);
  text.onkeydown = (event) => { if (sends(event)) { event.preventDefault(); box.requestSubmit(); } };
  box.onkeydown = (event) => { if (event.key === "Escape" && !event.isComposing) { event.stopPropagation(); end(); } };
  item.lastChild.remove();
  item.lastChild.replaceWith(box);
  fit(text);
  text.focus();
}

function drawAll() {
  turns.replaceChildren();
  chat.turns.forEach((_, number) => drawTurn(number));
  showLive();
}

/** Once a frame, however many deltas come. */
function redraw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    if (!chat.live) return;
    drawAnswer(turns.lastChild, answer(), true);
    showFigures();
    speech.follow(splitThinking(answer()).reply);
    stick();
  });
}

function showFigures() {
  if (chat.live) turns.lastChild.querySelector(".figures").textContent = progress();
}

/** Send or Stop, welcome or turns, the mark of the answer under way. */
function showLive() {
  const live = Boolean(chat.live), focused = document.activeElement;
  $("welcome").hidden = chat.turns.length > 0;
  turns.hidden = chat.turns.length === 0;
  $("stop").hidden = !live;
  $("send").hidden = live;
  $("send").disabled = !question.value.trim();
  for (const edit of turns.querySelectorAll(".edit")) edit.hidden = live;
  for (const item of turns.children) item.classList.toggle("live", live && item === turns.lastChild);
  turns.children[turns.children.length - 3]?.querySelector(".again")?.remove();
  showFigures();
  stick();
  // The button that had the focus may be gone now.
  if (focused !== document.activeElement || focused?.hidden || !focused?.isConnected) question.focus();
}

function stick() {
  if (follow) main.scrollTop = main.scrollHeight;
  $("latest").hidden = follow;
}

function showBanner(text, label = "Dismiss", act = () => {}) {
  const [span, button] = $("banner").children;
  span.textContent = text;
  button.textContent = label;
  button.onclick = () => { hideBanner(); question.focus(); act(); };
  $("banner").hidden = false;
}

function hideBanner() { $("banner").hidden = true; }

/** What was done, and perhaps a way back. */
function showNotice(text, label = "", act = () => {}) {
  const [span, button, dismiss] = $("notice").children;
  span.textContent = text;
  button.textContent = label;
  button.hidden = !label;
  button.onclick = () => { hideNotice(); act(); };
  dismiss.onclick = () => { hideNotice(); chat.before = null; save(); question.focus(); };
  $("notice").hidden = false;
}

function hideNotice() { $("notice").hidden = true; }

function offerUndo() { showNotice("The question was replaced, with what was said after it.", "Undo", undoEdit); }

function showDropped(titles) {
  showNotice(`This browser keeps ${MOST_CONVERSATIONS} conversations. The oldest was deleted: ${titles.map((title) => `“${title}”`).join(", ")}.`);
}

function showKeepProblem(error) {
  const full = error.name === "QuotaExceededError";
  const words = full ? "This browser's storage is full: the conversation is not kept beyond this tab." : `The conversation is not kept beyond this tab: ${error.message}`;
  showBanner(words, full ? "Delete others" : "Dismiss", full ? openList : undefined);
}

let toldFull = false;

function showStorageFull() {
  if (toldFull) return;
  toldFull = true;
  showBanner("This tab's storage is full or not allowed: a reload goes back to what was kept before.");
}

/** The state in a word. Without a network only a server on this machine answers. */
function showLabel() {
  const { state } = connection, isOffline = !navigator.onLine && (state === "ready" ? connection.isDoubted : ["waiting", "connecting"].includes(state));
  const shown = isOffline ? "offline" : state;
  const label = { ready: "Connected", connecting: "Connecting", waiting: "Reconnecting", locked: "Token needed", off: "Not connected", offline: "Offline" }[shown];
  $("status").dataset.state = shown;
  if ($("status").textContent !== label) $("status").firstChild.textContent = label;
  return shown;
}

function showState(state, why) {
  const isOffline = showLabel() === "offline";
  $("status").firstChild.title = address.href;
  if (state === "ready") {
    hideBanner();
    $("model").textContent = connection.hello.model;
    document.title = `${connection.hello.model} · asyncgen chat`;
    for (const { id, token, seq } of chat.orphans.splice(0)) {
      connection.send({ type: "resume", id, resume_token: token, after: seq });
      connection.send({ type: "cancel", id });
    }
    if (chat.live) request();
    save();
  } else if (state === "waiting") {
    if (why.code === 1009 && chat.live && !chat.live.token) finish({ problem: "The server takes no message that long. Start a new chat, or write less." });
    const words = why.code === 1001 ? "The server is shutting down." : why.code === 1013 ? "The server is busy." : null;
    const lost = connection.hello ? "The connection is lost." : `There is no answer from ${address.host}.`;
    if (isOffline) showBanner("This device is offline. The page connects again by itself.", "Try now", () => connection.retry());
    else if (words || why.failures > 2) showBanner(`${words ?? lost} Trying again by itself.`, "Try now", () => connection.retry());
  } else if (state === "off" && why.message) {
    showBanner(`This address cannot be used: ${why.message}`);
  } else if (state === "locked") {
    const known = why.code in EXPLAINED;
    if (why.code === "bad_origin") return showBanner(EXPLAINED.bad_origin, "Try again", () => connection.retry());
    const words = known ? EXPLAINED[why.code] : `The server closed the connection: ${why.message || "not allowed"}.`;
    showBanner(words, "Enter token", openSettings);
    if (!$("settings").open) openSettings();
    $("locked").textContent = words;
    $("locked").hidden = false;
    form.elements.token.select();
  }
  showFigures();
}
