/* ---- What a screen reader says: whole sentences, now and then, not every token. ---- */

const speech = {
  said: 0,
  last: 0,
  begin() { this.said = 0; this.last = performance.now(); this.say("Answering."); },
  say(text) {
    $("spoken").append(make("p", {}, text));
    while ($("spoken").children.length > 8) $("spoken").firstChild.remove();
  },
  follow(text) {
    if (performance.now() - this.last < 4000) return;
    const whole = Math.max(...[". ", "! ", "? ", "\n"].map((end) => text.lastIndexOf(end))) + 1;
    if (whole > this.said) this.speak(text, whole);
  },
  speak(text, end) {
    this.say(text.slice(this.said, end));
    this.said = end;
    this.last = performance.now();
  },
  end(turn) {
    const { reply } = splitThinking(turn);
    if (reply.length > this.said) this.speak(reply, reply.length);
    this.say(turn.problem ? `Problem: ${turn.problem}` : `End of the answer: ${turn.figures}.`);
  },
};
