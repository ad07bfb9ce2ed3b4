// Plays transcripts with the WebSocket client that is part of Node, which knows nothing of ours.
// node --experimental-websocket transcript.mjs FILE URL [FILE URL …]; one line of JSON for each:
// null, or what went otherwise. What the steps mean stands in transcript.py.
import { readFileSync } from "node:fs";

const PATIENCE = 30000;
const TYPES = {
  string: (value) => typeof value === "string",
  integer: Number.isInteger,
  number: (value) => typeof value === "number",
  boolean: (value) => typeof value === "boolean",
  any: () => true,
};

class Connection {
  constructor(url) {
    this.socket = new WebSocket(url, ["asyncgen.v1"]);
    this.events = [];
    this.wake = () => {};
    const put = (event) => { this.events.push(event); this.wake(); };
    this.socket.onopen = () => put({ open: true });
    this.socket.onmessage = ({ data }) => put({ data });
    this.socket.onclose = ({ code }) => put({ code });
  }

  async next() {
    if (!this.events.length) {
      let timer;
      await new Promise((resolve, reject) => {
        this.wake = resolve;
        timer = setTimeout(() => reject(new Error("nothing came")), PATIENCE);
      });
      clearTimeout(timer);
    }
    return this.events.shift();
  }

  async receive() {
    const event = await this.next();
    if (!("data" in event)) throw new Error(`no message, but ${JSON.stringify(event)}`);
    return JSON.parse(event.data);
  }
}

class Player {
  names = {};
  connections = {};

  constructor(url) { this.url = url; }

  async play(steps) {
    try {
      for (const [number, step] of steps.entries()) {
        try { await this.step(step); } catch (error) {
          throw new Error(`step ${number} ${JSON.stringify(step).slice(0, 200)}: ${error.message}`);
        }
      }
    } finally {
      for (const { socket } of Object.values(this.connections)) socket.close();
    }
  }

  async step(step) {
    const on = step.on ?? "a";
    if ("connect" in step) {
      const made = this.connections[on] = new Connection(this.url);
      const event = await made.next();
      if (!event.open) throw new Error(`not connected: ${JSON.stringify(event)}`);
      if (made.socket.protocol !== "asyncgen.v1") throw new Error(`protocol ${made.socket.protocol}`);
      return;
    }
    if ("same" in step) return this.match(...this.fill(step.same), "value");
    const made = this.connections[on];
    for (let time = 0; time < (step.times ?? 1); time++) {
      if ("send" in step) made.socket.send(JSON.stringify(this.fill(step.send)));
      else if ("raw" in step) made.socket.send(repeated(step.raw));
      else if ("binary" in step) made.socket.send(new Uint8Array(step.binary));
      else if ("expect" in step) await this.expect(made, step.expect);
      else if ("deltas" in step) {
        for (let number = 0; number < step.deltas; number++) this.collect(await made.receive(), step.of);
      } else if ("close" in step) { made.socket.close(step.close); await this.gone(on); }
      else if ("expect_close" in step) this.match(step.expect_close, await this.closed(on), "close code");
      else throw new Error("no such step");
    }
  }

  async expect(made, wanted) {
    if (!Array.isArray(wanted)) return this.match(wanted, await this.next(made, wanted.type), "message");
    for (let left = [...wanted]; left.length;) {
      const message = await this.next(made), reasons = [];
      const found = left.findIndex((one) => {
        const names = { ...this.names };
        try { this.match(one, message, "message"); return true; } catch (error) {
          this.names = names;
          reasons.push(error.message);
          return false;
        }
      });
      if (found < 0) throw new Error(reasons.join("; "));
      left.splice(found, 1);
    }
  }

  /** The next message, deltas only if one is asked for. */
  async next(made, kind) {
    for (;;) {
      const message = await made.receive();
      if (message.type === "delta") {
        this.collect(message, message.id);
        if (kind !== "delta") continue;
      } else if (message.type === "done") this.count(message);
      else if (message.type === "accepted") this.open(message.id);
      return message;
    }
  }

  /** A request of a name that ended begins anew; one that was cut goes on. */
  open(name) {
    if (this.names[`$=${name}.ended`] ?? true) Object.assign(this.names, { [`$=${name}.seq`]: 0, [`$=${name}.text`]: "" });
    this.names[`$=${name}.ended`] = false;
  }

  count(message) {
    const key = `$=${message.id}.seq`, seen = this.names[key];
    if ((message.first_seq ?? message.seq) !== seen + 1) throw new Error(`number ${message.seq} came after ${seen}: ${JSON.stringify(message)}`);
    this.names[key] = message.seq;
    this.names[`$=${message.id}.ended`] = message.type === "done";
  }

  collect(message, name) {
    if (message.type !== "delta" || message.id !== name) throw new Error(`no delta of ${name}: ${JSON.stringify(message)}`);
    this.count(message);
    this.names[`$=${name}.text`] += message.text;
  }

  /** The code of the next event, which must be the close. */
  async closed(on) {
    const event = await this.connections[on].next();
    delete this.connections[on];
    if (!("code" in event)) throw new Error(`in place of the close: ${JSON.stringify(event)}`);
    return event.code;
  }

  /** Whatever still comes, until it is closed. */
  async gone(on) {
    while (!("code" in (await this.connections[on].next())));
    delete this.connections[on];
  }

  fill(value) {
    if (typeof value === "string" && value.startsWith("$=")) {
      if (!(value in this.names)) throw new Error(`${value} was never seen`);
      return this.names[value];
    }
    if (Array.isArray(value)) return value.map((one) => this.fill(one));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, this.fill(one)]));
    return value;
  }

  match(wanted, value, where) {
    if (typeof wanted === "string" && wanted.startsWith("$")) {
      if (wanted.startsWith("$=")) wanted = this.names[wanted] ??= value;
      else if (value === null ? wanted.endsWith("?") : TYPES[wanted.replace(/^\$|\?$/g, "")](value)) return;
    }
    if (isObject(wanted) && isObject(value)) {
      const keys = new Map(Object.keys(wanted).map((key) => [key.replace(/\?$/, ""), key]));
      for (const key of Object.keys(value)) if (!keys.has(key)) throw new Error(`${where}.${key} is not expected: ${JSON.stringify(value)}`);
      for (const [key, written] of keys) {
        if (key in value) this.match(wanted[written], value[key], `${where}.${key}`);
        else if (!written.endsWith("?")) throw new Error(`${where}.${key} is missing: ${JSON.stringify(value)}`);
      }
      return;
    }
    if (Array.isArray(wanted) && Array.isArray(value) && wanted.length === value.length) {
      return wanted.forEach((one, number) => this.match(one, value[number], `${where}[${number}]`));
    }
    if (JSON.stringify(wanted) !== JSON.stringify(value)) throw new Error(`${where} is ${JSON.stringify(value)}, not ${JSON.stringify(wanted)}`);
  }
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function repeated(raw) {
  if (typeof raw === "string") return raw;
  if (raw.length === 2 && typeof raw[1] === "number") return repeated(raw[0]).repeat(raw[1]);
  return raw.map(repeated).join("");
}

const jobs = process.argv.slice(2);
for (let number = 0; number < jobs.length; number += 2) {
  let failure = null;
  try {
    await new Player(jobs[number + 1]).play(JSON.parse(readFileSync(jobs[number], "utf8")).steps);
  } catch (error) { failure = String(error.message); }
  console.log(JSON.stringify(failure));
}
process.exit(0);
