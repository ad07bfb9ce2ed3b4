/* ---- Conversations that this browser keeps, for all tabs of this server. Knows nothing of the screen. ---- */

const MOST_CONVERSATIONS = 200, MOST_CHARACTERS = 20e6, TITLE_LENGTH = 80;

/** Wait for a request of IndexedDB. */
const got = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

/** Whether nothing of the first conversation is missing in the second: what was being written may be longer there. */
function isWithin(turns, others) {
  return turns.length <= others.length && turns.every((turn, number) => {
    const other = others[number], last = number === turns.length - 1;
    return turn.role === other.role && (last ? other.content.startsWith(turn.content) : other.content === turn.content);
  });
}

function titleOf(turns) {
  const text = (turns.find((turn) => turn.role === "user")?.content ?? "").trim().replace(/\s+/g, " ");
  return text.length > TITLE_LENGTH ? `${text.slice(0, TITLE_LENGTH)}…` : text;
}

class Library {
  #database = null;
  #pending = new Map();
  #writing = null;
  #last = Promise.resolve();
  #channel = null;
  /** Of the conversations that were read or written here, what they were then: {id: revision}. */
  revisions = new Map();

  /** `on.kept(id)`, `on.copied(id, copy)`, `on.dropped(titles)`, `on.problem(error)`; `on.changed(id)` by another tab. */
  constructor(name, on) {
    Object.assign(this, { name, on });
    try {
      this.#channel = new BroadcastChannel(name);
      this.#channel.onmessage = (event) => on.changed(event.data);
    } catch { /* a tab that hears nothing still loses nothing */ }
  }

  /** Keep a conversation as it is now; what came since the last time is written once. */
  keep(id, turns) {
    this.#pending.set(id, structuredClone(turns));
    this.#inTurn(() => this.#flush());
  }

  /** Whether something waits to be written. */
  isPending(id) { return this.#pending.has(id) || this.#writing === id; }

  /** What the list shows, newest first: {id, title, changed, count}. */
  async list() {
    const titles = await got((await this.#begin("readonly")).objectStore("titles").getAll());
    return titles.sort((one, other) => other.changed - one.changed);
  }

  /** One conversation: {id, title, changed, revision, turns}; undefined where it was deleted. */
  async get(id) {
    const stores = await this.#begin("readonly");
    const [title, kept] = await Promise.all([got(stores.objectStore("titles").get(id)), got(stores.objectStore("turns").get(id))]);
    return title && kept && { ...title, turns: kept.turns };
  }

  /** Delete conversations; returns them, for `restore`. */
  remove(ids) {
    return this.#inTurn(async () => {
      await this.#flush();
      const found = await Promise.all(ids.map((id) => this.get(id)));
      const stores = await this.#begin("readwrite");
      for (const id of ids) for (const name of ["titles", "turns"]) stores.objectStore(name).delete(id);
      await this.#end(stores, ids);
      return found.filter(Boolean);
    });
  }

  /** Put back what was deleted. */
  restore(records) {
    return this.#inTurn(async () => {
      const stores = await this.#begin("readwrite");
      for (const { turns, ...title } of records) {
        stores.objectStore("titles").put(title);
        stores.objectStore("turns").put({ id: title.id, turns });
      }
      await this.#end(stores, records.map((record) => record.id));
    });
  }

  /** One after the other, in this tab. */
  #inTurn(act) { return (this.#last = this.#last.then(act, act)); }

  async #flush() {
    for (let next; (next = this.#pending.entries().next().value); this.#writing = null) {
      this.#pending.delete(next[0]);
      this.#writing = next[0];
      try { await this.#put(...next); } catch (error) { this.on.problem(error); }
    }
  }

  /** In one transaction, so that no tab writes between reading and writing. What another tab wrote stays: this goes on as a copy. */
  async #put(id, turns) {
    const stores = await this.#begin("readwrite"), titles = stores.objectStore("titles"), all = stores.objectStore("turns");
    const there = await got(titles.get(id));
    let own = id;
    if (there && there.revision !== this.revisions.get(id)) {
      const kept = await got(all.get(id));
      if (!isWithin(kept.turns, turns)) own = newId();
    }
    const title = { id: own, title: titleOf(turns), changed: Date.now(), count: turns.length, size: JSON.stringify(turns).length, revision: newId() };
    titles.put(title);
    all.put({ id: own, turns });
    // What fails ends the transaction, whose error says why.
    const others = await got(titles.getAll()).catch(() => stores.ended);
    const dropped = there && own === id ? [] : this.#surplus(others, own);
    for (const one of dropped) { titles.delete(one.id); all.delete(one.id); }
    await this.#end(stores, [own, ...dropped.map((one) => one.id)]);
    this.revisions.set(own, title.revision);
    if (own !== id) {
      const later = this.#pending.get(id);
      if (later) { this.#pending.delete(id); this.#pending.set(own, later); }
      this.on.copied(id, own);
    }
    this.on.kept(own);
    if (dropped.length) this.on.dropped(dropped.map((one) => one.title));
  }

  /** The oldest ones beyond what is kept. */
  #surplus(titles, own) {
    let size = 0;
    titles.sort((one, other) => other.changed - one.changed);
    return titles.filter((one, number) => {
      size += one.size;
      return one.id !== own && (number >= MOST_CONVERSATIONS || size > MOST_CHARACTERS);
    });
  }

  async #begin(mode) {
    let transaction;
    // The browser may have closed the connection since.
    try { transaction = this.#database.transaction(["titles", "turns"], mode); } catch {
      this.#database = await this.#open();
      transaction = this.#database.transaction(["titles", "turns"], mode);
    }
    transaction.ended = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new DOMException("the browser gave it up", "AbortError"));
    });
    transaction.ended.catch(() => {});
    return transaction;
  }

  #open() {
    const request = indexedDB.open(this.name, 1);
    request.onupgradeneeded = () => { for (const name of ["titles", "turns"]) request.result.createObjectStore(name, { keyPath: "id" }); };
    return got(request);
  }

  /** Wait until it is written, and tell the other tabs. */
  async #end(stores, ids) {
    await stores.ended;
    for (const id of ids) this.#channel?.postMessage(id);
  }
}
