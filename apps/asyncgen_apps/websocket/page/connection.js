/* ---- The connection: one socket at a time, heartbeats, backoff. Knows nothing of the chat. ---- */

class Connection {
  #socket = null;
  #timer = 0;
  #beat = 0;
  #failures = 0;
  #heard = true;
  #retryAfter = 0;
  #doubt = 0;
  #last = null;
  hello = null;
  state = "off";

  /** `on.message(frame)` after the hello; `on.state(state, why)`, with why = {code, message}; `on.heard()` when a doubt is over. */
  constructor(url, on) { Object.assign(this, { url, on }); }

  open() {
    this.#drop();
    this.#last = null;
    this.#become("connecting");
    let socket;
    // Not every address may be opened: ws:// not from an https:// page, for one.
    try { socket = new WebSocket(this.url, ["asyncgen.v1"]); } catch (error) { return this.#become("off", { message: error.message }); }
    this.#socket = socket;
    socket.onopen = () => {
      const token = store.get("token", "");
      // Anything but the token is refused where one is needed: a ping asks whether it is.
      this.#write(token ? { type: "auth", token } : { type: "ping", nonce: "hello" });
    };
    socket.onmessage = (event) => { this.#heard = true; this.#believe(); this.#receive(event.data); };
    socket.onclose = (event) => this.#ended(event.code, event.reason);
    this.#timer = setTimeout(() => this.#ended(0, "no answer"), 15000);
  }

  /** Send now; false where there is no connection. */
  send(frame) { return this.state === "ready" && this.#write(frame); }

  /** Try at once; not where nobody has agreed to connect yet. */
  retry() {
    if (this.state !== "waiting" && this.state !== "locked") return;
    this.#failures = 0;
    this.open();
  }

  /** Whether it was asked if the server is still there, and no answer has come. */
  get isDoubted() { return this.#doubt !== 0; }

  /** Ask now; who does not answer is given up soon. A server on this machine answers without a network. */
  doubt() {
    if (this.state !== "ready") return;
    clearTimeout(this.#doubt);
    this.#doubt = setTimeout(() => this.#ended(0, "the network is gone"), 3000);
    this.#write({ type: "ping", nonce: newId() });
  }

  #believe() {
    if (!this.#doubt) return;
    clearTimeout(this.#doubt);
    this.#doubt = 0;
    this.on.heard();
  }

  /** Give a connection up that does not do what it should, and make another. */
  restart(why) { this.#ended(0, why); }

  #write(frame) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  #receive(data) {
    let frame;
    try { frame = JSON.parse(data); } catch { return this.#ended(0, "the server sent something that is no JSON"); }
    if (frame.type === "hello") {
      clearTimeout(this.#timer);
      this.hello = frame;
      this.#failures = 0;
      this.#keepAlive((frame.heartbeat_seconds || 20) * 1000);
      return this.#become("ready");
    }
    if (frame.type === "error" && frame.id == null) {
      this.#last = frame;
      this.#retryAfter = frame.retry_after ?? 0;
      if (frame.code === "not_authenticated" || frame.code === "unauthorized") return this.#lock(frame);
      if (this.state !== "ready") return;
    }
    this.on.message(frame);
  }

  /** Whoever was silent since the last ping is gone, whatever the socket believes. */
  #keepAlive(period) {
    clearInterval(this.#beat);
    this.#heard = true;
    this.#beat = setInterval(() => {
      if (!this.#heard) return this.#ended(0, "the server fell silent");
      this.#heard = false;
      this.#write({ type: "ping", nonce: newId() });
    }, period);
  }

  #lock(why) { this.#drop(); this.#become("locked", why); }

  #ended(code, reason) {
    this.#drop();
    if (code === 1008) return this.#lock({ code: this.#last?.code ?? "policy", message: reason });
    const wait = Math.max(this.#retryAfter * 1000, Math.min(10000, 300 * 2 ** this.#failures) * (0.7 + 0.6 * Math.random()));
    this.#failures += 1;
    this.#retryAfter = 0;
    this.#timer = setTimeout(() => this.open(), wait);
    this.#become("waiting", { code, message: this.#last?.message ?? reason, failures: this.#failures });
  }

  #drop() {
    clearTimeout(this.#timer);
    clearInterval(this.#beat);
    clearTimeout(this.#doubt);
    this.#doubt = 0;
    if (!this.#socket) return;
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close(4000);  // not 1000: that would end what is under way
    this.#socket = null;
  }

  #become(state, why = {}) { this.state = state; this.on.state(state, why); }
}
