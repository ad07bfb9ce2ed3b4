/* ---- The chat: turns, and at most one answer under way. ---- */

const kept = store.get("chat", {});
const chat = {
  /** Name of the conversation in the library. */
  id: kept.id ?? newId(),
  /** {role, content} of what was said; an answer also has reasoning, figures, problem. */
  turns: kept.turns ?? [],
  /** The answer under way, the last turn: {id, token, seq, sent, first, tokens, tries}; also what was asked for, the ids, the position and the end of the text, for a server that has not begun it. */
  live: kept.live ?? null,
  /** Answers that nobody waits for, to be cancelled once there is a connection: {id, token, seq}. */
  orphans: kept.orphans ?? [],
  /** Turns before a question was edited, until that cannot be undone any more. */
  before: kept.before ?? null,
  revision: kept.revision,
};
const settings = store.get("settings", {});
const connection = new Connection(address.href, { message: receive, state: showState, heard: showLabel });
const library = new Library(`asyncgen ${address}`, { kept: wasKept, copied: wasCopied, changed: wasChanged, dropped: showDropped, problem: showKeepProblem });
if (chat.revision) library.revisions.set(chat.id, chat.revision);
let saving = 0, keptAt = 0;

/** For a reload of this tab. */
function save() {
  clearTimeout(saving);
  saving = 0;
  if (!store.set("chat", chat)) showStorageFull();
  if (chat.live && Date.now() - keptAt > 3000) keep();
}

/** Text and seq are kept together, so being late only means that more is sent again. */
function saveSoon() { saving ||= setTimeout(save, 300); }

const answer = () => chat.turns.at(-1);

/** What the model is told: a question that got no answer is left out. */
function history() {
  const messages = settings.system ? [{ role: "system", content: settings.system }] : [];
  chat.turns.forEach((turn, number) => {
    const reply = turn.role === "user" ? chat.turns[number + 1] : turn;
    if (reply?.content || reply === answer()) messages.push({ role: turn.role, content: turn.content });
  });
  return messages.slice(0, -1);
}

/** What is filled in. */
function parameters() {
  const found = {};
  for (const name of ["max_new_tokens", "temperature", "top_p", "seed"]) {
    if (settings[name] !== undefined && settings[name] !== "") found[name] = Number(settings[name]);
  }
  return found;
}

function ask(question) {
  chat.before = null;
  hideNotice();
  chat.turns.push({ role: "user", content: question }, { role: "assistant", content: "" });
  drawTurn(chat.turns.length - 2);
  begin();
}

/** Ask for the last answer (again). */
function begin() {
  answer().unfinished = true;
  chat.live = { id: newId(), token: null, seq: 0, sent: Date.now(), first: null, tokens: 0, tries: 0, asked: null, ids: [], position: 0, rest: "" };
  drawTurn(chat.turns.length - 1);
  follow = true;
  showLive();
  speech.begin();
  save();
  keep();
  request();
}

/** Put the answer under way on this connection: what was accepted goes on, else it is asked for. */
function request() {
  const live = chat.live;
  if (connection.state !== "ready") return connection.retry();
  if (live.token) {
    live.repeated = false;
    connection.send({ type: "resume", id: live.id, resume_token: live.token, after: live.seq });
    if (live.stopping) connection.send({ type: "cancel", id: live.id });
    return;
  }
  live.tries += 1;
  if (live.tries > 3) return finish({ problem: "The connection broke three times as soon as this was sent." });
  live.asked = { messages: history(), params: parameters(), events: "tokens" };
  const frame = { type: "generate", id: live.id, ...live.asked };
  const limit = connection.hello.limits?.max_message_bytes;
  if (limit && new TextEncoder().encode(JSON.stringify(frame)).length > limit) {
    return finish({ problem: `This conversation is longer than the ${limit} bytes that the server takes. Start a new chat, or write less.` });
  }
  connection.send(frame);
}

/** Tell a server that has not begun the answer all of it, if it goes on with such; whether it does. */
function repeat() {
  const live = chat.live;
  if (!connection.hello?.takes_over || !live.asked || live.repeated || live.stopping) return false;
  live.repeated = true;
  live.rest = "";
  return connection.send({ type: "resume", id: live.id, resume_token: live.token, after: live.seq, request: live.asked, generated_ids: [live.ids], positions: [live.position] });
}

function stop() {
  const live = chat.live;
  if (!live) return;
  live.stopping = true;
  if (connection.send({ type: "cancel", id: live.id })) return;
  // With no connection nobody can be told yet; here the answer ends at once all the same.
  abandon();
  finish({ figures: summary({ finish_reason: "cancelled" }) });
}

/** See to it that an answer that nobody reads any more is not computed. */
function abandon() {
  const { id, token, seq } = chat.live;
  if (!connection.send({ type: "cancel", id }) && token) chat.orphans.push({ id, token, seq });
}

function receive(frame) {
  const live = chat.live;
  const mine = live && frame.id === live.id;
  if (frame.type === "error" && frame.id == null) {
    return live && !live.token ? finish({ problem: explain(frame) }) : showBanner(explain(frame));
  }
  if (!mine) return;
  if (frame.type === "accepted") {
    live.token = frame.resume_token;
    live.repeated = false;
    live.tries = 0;
    live.queued = frame.queue_position;
    showFigures();
    saveSoon();
  } else if (frame.type === "delta") {
    if (frame.seq <= live.seq) return;
    if ((frame.first_seq ?? frame.seq) > live.seq + 1) return connection.restart("a part of the answer was missing");
    live.seq = frame.seq;
    live.first ??= Date.now();
    live.queued = null;
    live.tokens += frame.token_ids?.length ?? 0;
    live.position = frame.position ?? live.position;
    if (frame.token_ids?.length) live.ids?.push(...frame.token_ids);
    // What comes without ids was held back to the end; who goes on behind the ids says it again.
    if (frame.token_ids?.length === 0) live.rest = (live.rest ?? "") + frame.text;
    else answer().content += frame.text;
    if (frame.reasoning) answer().reasoning = (answer().reasoning ?? "") + frame.reasoning;
    redraw();
    saveSoon();
  } else if (frame.type === "done") {
    if (frame.seq > live.seq + 1) return connection.restart("the end of the answer was missing");
    if (frame.finish_reason === "aborted" && connection.hello.takes_over && !live.stopping) return connection.restart("the server leaves");
    answer().content = frame.text ?? answer().content + (live.rest ?? "");
    finish({ figures: summary(frame) });
  } else if (frame.type === "error") {
    if ((frame.code === "resume_unknown" || frame.code === "resume_gone") && repeat()) return;
    finish({ problem: explain(frame) });
  }
}

/** The answer has ended: what is left is a turn like any other. */
function finish(outcome) {
  Object.assign(answer(), outcome, { unfinished: undefined });
  chat.live = null;
  save();
  keep();
  drawTurn(chat.turns.length - 1);
  showLive();
  speech.end(answer());
}

const seconds = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`);
const many = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const rate = (value) => (value === null ? null : `${value < 10 ? value.toFixed(1) : Math.round(value)} tokens/s`);
const ENDS = { stop: "complete", length: "length", incomplete: "incomplete", time: "time", cancelled: "stopped", aborted: "closed", error: "failed" };

/** Tokens, time to the first one as it was felt here, rate as the server measured it. */
function summary(done) {
  const live = chat.live;
  return [
    many(done.usage?.completion_tokens ?? live.tokens, "token"),
    live.first && `first after ${seconds((live.first - live.sent) / 1000)}`,
    rate(done.timing?.tokens_per_second ?? null),
    done.finish_reason in ENDS ? ENDS[done.finish_reason] : done.finish_reason,
  ].filter(Boolean).join(" · ");
}

function progress() {
  const live = chat.live;
  if (connection.state !== "ready") return "waiting for the connection";
  if (!live.first) return live.queued ? `number ${live.queued} in the queue` : "reading the prompt";
  const since = (Date.now() - live.first) / 1000;
  return [
    many(live.tokens, "token"),
    `first after ${seconds((live.first - live.sent) / 1000)}`,
    since > 0.2 && rate((live.tokens - 1) / since),
  ].filter(Boolean).join(" · ");
}

const EXPLAINED = {
  resume_unknown: "The rest of this answer is lost: the server does not know it any more.",
  resume_gone: "The rest of this answer is lost: the connection was away for too long.",
  resume_ahead: "The rest of this answer is lost: the server has less of it than this page.",
  resume_expired: "The rest of this answer is lost: it began too long ago.",
  resume_moved: "This answer goes on in another tab.",
  context_length: "This conversation is too long for the model. Start a new chat, or ask for a shorter answer.",
  slow_reader: "The rest of this answer is lost: this page read too slowly.",
  overloaded: "The server is busy.",
  too_many_requests: "Too many answers at once on this connection.",
  engine_dead: "The model has stopped working on the server.",
  draining: "The server is shutting down.",
  not_authenticated: "This server asks for an access token.",
  unauthorized: "The server does not accept this access token.",
  bad_origin: "The server does not accept pages from this address.",
};

/** An error in words: ours where they say more, with the server's. */
function explain(frame) {
  const words = EXPLAINED[frame.code];
  const theirs = frame.message ? frame.message[0].toUpperCase() + frame.message.slice(1) : frame.code;
  const later = frame.retry_after ? ` Try again in ${Math.ceil(frame.retry_after)} s.` : "";
  return (words ? (frame.code === "context_length" ? `${words} (${theirs})` : words) : theirs) + later;
}
