// The run: unpacked from the page, and asked about. Columns are as labtools/page/data.py writes them.

export async function unpack(base64) {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

// The place of the last change at or before an event, in flat rows of `width` that begin with the event; -1 if none.
export function lastBefore(flat, event, width = 2) {
  let low = 0;
  let high = flat.length / width;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (flat[middle * width] <= event) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

export function unfold(stretches) {
  const numbers = [];
  for (let i = 0; i < stretches.length; i += 2) {
    for (let k = 0; k < stretches[i + 1]; k++) numbers.push(stretches[i] < 0 ? -1 : stretches[i] + k);
  }
  return numbers;
}

const EVERY = 64; // changes of a log between two that are kept whole

class LogHistory {
  constructor(changes) {
    this.changes = changes;
    this.whole = new Map();
    this.places = changes.map((change) => change[0]);
  }

  // The log after an event: {base, baseTerm, entries}, and what the last change at that very event was.
  at(event) {
    const last = lastBefore(this.places, event, 1);
    let log = { base: 0, baseTerm: 0, entries: [] };
    let first = 0;
    if (this.latest && this.latest.last <= last && this.latest.last >= last - (last % EVERY)) {
      log = this.latest.log; // one steps on from here
      first = this.latest.last + 1;
    } else {
      for (let known = last - (last % EVERY); known > 0; known -= EVERY) {
        if (this.whole.has(known)) {
          log = this.whole.get(known);
          first = known + 1;
          break;
        }
      }
    }
    for (let i = first; i <= last; i++) {
      const [, base, baseTerm, keep, added] = this.changes[i];
      const kept = log.entries.slice(Math.max(base - log.base, 0), Math.max(keep - log.base, 0));
      while (kept.length < keep - base) kept.push(-1);
      log = { base, baseTerm, entries: kept.concat(unfold(added)) };
      if (i % EVERY === 0) this.whole.set(i, log);
    }
    this.latest = { last, log };
    const changed = last >= 0 && this.changes[last][0] === event ? this.changes[last][3] : null;
    return { ...log, changed };
  }
}

export class Run {
  constructor(data) {
    Object.assign(this, data);
    const e = data.events;
    this.wordings = data.texts.map((told) => (typeof told === "string" ? [told] : told));
    this.texts = this.wordings.map((told) => told[0]);
    const n = (this.count = e.time.length);
    this.time = new Float64Array(n);
    for (let i = 0, t = 0; i < n; i++) this.time[i] = t += e.time[i];
    this.cause = Int32Array.from(e.cause, (back, i) => (back ? i - back : -1));
    this.lane = Int16Array.from(e.lane);
    this.call = Int32Array.from(e.call);
    this.words = Int32Array.from(e.words);
    this.shown = Uint8Array.from(e.shown);
    this.fold = Int32Array.from(e.fold);
    this.kindOf = Uint8Array.from(e.kind);
    this.topicOf = Uint16Array.from(e.topic);
    this.termOf = Int32Array.from(e.term);
    this.endNs = Math.max(data.run.ends_ns ?? 0, n ? this.time[n - 1] : 0);
    this.logs = data.states.map((state) => state && new LogHistory(state.log));
    this.fieldLists = (data.fields ?? []).map((of) => of && Object.fromEntries(Object.entries(of.lists).map(([name, changes]) => [name, new LogHistory(changes)])));
    this.peers = data.lanes.map((_, lane) => lane).filter((lane) => data.lanes[lane].peer);
    this.becameAt = new Map();
    for (const [event, lane, text, role] of data.became) {
      if (!this.becameAt.has(event)) this.becameAt.set(event, []);
      this.becameAt.get(event).push([lane, text, role]);
    }
    this.effects = null;
    // What is accused: messages, or operations of clients that cannot be put in one order.
    const operations = data.operations.filter(([, , , , accused]) => accused).map(([, from, to]) => (to >= 0 ? to : from));
    this.places = data.run.failed ? [...(data.run.places ?? []), ...operations].sort((a, b) => a - b) : [];
    this.evidence = new Set(this.places);
    this.failAt = data.run.failed ? this.places.at(-1) ?? n - 1 : -1;
    this.operationAt = new Map();
    data.operations.forEach(([, from, to], number) => {
      this.operationAt.set(from, number);
      if (to >= 0) this.operationAt.set(to, number);
    });
    this.legs = this.#legs();
  }

  kind(event) {
    return this.kinds[this.kindOf[event]];
  }

  text(number) {
    return number < 0 ? "" : this.texts[number];
  }

  name(lane) {
    return lane < 0 ? "the tester" : this.lanes[lane].peer ? `peer ${this.lanes[lane].name}` : this.lanes[lane].name;
  }

  // The event that is the latest at that time; of one lane, if it is given.
  at(ns, lane = -1) {
    let low = 0;
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.time[middle] <= ns) low = middle + 1;
      else high = middle;
    }
    let event = Math.max(low - 1, 0);
    if (lane >= 0) for (let i = event; i >= 0; i--) if (this.lane[i] === lane) return i;
    return event;
  }

  // A field of a peer after an event, and whether it changed there.
  field(lane, name, event, otherwise = 0) {
    const changes = this.states[lane][name];
    const row = changes ? lastBefore(changes, event) : -1;
    return row < 0 ? { value: otherwise, changed: false } : { value: changes[2 * row + 1], changed: changes[2 * row] === event };
  }

  // What a leader has told of its followers: by lane, {next, match, changed}.
  indexes(lane, event) {
    const flat = this.states[lane].indexes;
    const known = new Map();
    for (let row = lastBefore(flat, event, 4); row >= 0; row--) {
      const [at, follower, next, match] = flat.slice(4 * row, 4 * row + 4);
      if (follower < 0) break;
      if (!known.has(follower)) known.set(follower, { next, match, changed: at === event });
      if (known.size >= this.peers.length - 1) break;
    }
    return known;
  }

  // What an event brought about.
  effectsOf(event) {
    if (!this.effects) {
      const first = new Int32Array(this.count).fill(-1);
      const next = new Int32Array(this.count).fill(-1);
      for (let i = this.count - 1; i >= 0; i--) {
        if (this.cause[i] >= 0) {
          next[i] = first[this.cause[i]];
          first[this.cause[i]] = i;
        }
      }
      this.effects = { first, next };
    }
    const found = [];
    for (let i = this.effects.first[event]; i >= 0; i = this.effects.next[i]) found.push(i);
    return found;
  }

  // All that led to it, the nearest first.
  causesOf(event) {
    const chain = [];
    for (let i = this.cause[event]; i >= 0 && chain.length < 500; i = this.cause[i]) chain.push(i);
    return chain;
  }

  // Every way of every call: [call, isReply, from event, to event or -1, lost at event or -1], by where it begins.
  #legs() {
    const c = this.calls;
    const legs = [];
    for (let i = 0; i < c.id.length; i++) {
      const begin = c.original[i] >= 0 ? c.sent[c.original[i]] : c.sent[i];
      if (begin >= 0) legs.push([i, 0, begin, c.delivered[i], c.delivered[i] < 0 ? c.lost_request[i] : -1]);
      if (c.answered[i] >= 0) legs.push([i, 1, c.answered[i], c.replied[i], c.replied[i] < 0 ? c.lost_reply[i] : -1]);
    }
    legs.sort((a, b) => a[2] - b[2]);
    return legs;
  }
}
