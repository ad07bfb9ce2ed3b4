/* ---- Reasoning and reply of an answer, as the Gradio chat tells them apart. ---- */

const THINK = "<think>", THOUGHT = "</think>";

/**
 * The reasoning is what a `<think>` at the very beginning opens; a chat template may have written that tag, so that
 * only the closing one comes. A tag further down is part of the reply, which may well speak of tags.
 */
function splitThinking({ content, reasoning = "" }) {
  const body = content.trimStart(), opened = body.startsWith(THINK), at = content.indexOf(THOUGHT);
  if (body && body.length < THINK.length && THINK.startsWith(body)) return { thought: reasoning, reply: "", isThinking: true };
  const before = at < 0 ? content : content.slice(0, at);
  if (!opened && (at < 0 || before.includes(THINK))) return { thought: reasoning, reply: content, isThinking: !content };
  const thought = reasoning + (opened ? before.trimStart().slice(THINK.length) : before).trimStart();
  if (at >= 0) return { thought: thought.trimEnd(), reply: content.slice(at + THOUGHT.length).trimStart(), isThinking: false };
  let partial = THOUGHT.length - 1;
  while (!thought.endsWith(THOUGHT.slice(0, partial))) partial -= 1;
  return { thought: thought.slice(0, thought.length - partial).trimEnd(), reply: "", isThinking: true };
}
