/* ---- What is on the screen. ---- */

const main = $("main"), turns = $("turns"), question = $("question");
let follow = true, drawing = 0;

/** Draw a turn anew, in its place or at the end. */
function drawTurn(number) {
  const turn = chat.turns[number];
  const item = make("li", {}, make("h2", { className: "sr", textContent: turn.role === "user" ? "You" : "Answer" }));
  if (turn.role === "user") {
    item.append(make("div", { className: "user" }, turn.content));
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
  const found = make("div", { className: "foot" }, make("span", { className: "figures" }, turn.figures ?? ""));
  if (last && chat.live) return found;
  if (turn.content && navigator.clipboard) found.append(copyButton("Copy this answer", () => splitThinking(turn).reply));
  if (last) {
    const again = make("button", { className: "tool again", type: "button", title: "Try again", ariaLabel: "Try again" }, icon("again"));
    if (turn.problem || !turn.content) again.append("Try again");
    again.onclick = () => {
      chat.turns[number] = { role: "assistant", content: "" };
      begin();
    };
    found.append(again);
  }
  return found;
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

function showState(state, why) {
  const label = { ready: "Connected", connecting: "Connecting", waiting: "Reconnecting", locked: "Token needed", off: "Not connected" }[state];
  $("status").dataset.state = state;
  $("status").firstChild.title = address.href;
  if ($("status").textContent !== label) $("status").firstChild.textContent = label;
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
    if (words || why.failures > 2) showBanner(`${words ?? lost} Trying again by itself.`, "Try now", () => connection.retry());
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
