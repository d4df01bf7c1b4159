// The run: unpacked from the page, and asked about. Columns are as raftlab/tools/page/data.py writes them.

export async function unpack(base64) {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

// How many of the first so many numbers are at most that one: `at(i)` is the i-th of `count`, and they rise.
export function countUpTo(count, at, most) {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at(middle) <= most) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The place of the last change at or before an event, in flat rows of `width` that begin with the event; -1 if none.
export const lastBefore = (flat, event, width = 2) => countUpTo(flat.length / width, (i) => flat[i * width], event) - 1;

// In numbers that rise: the first behind one, or the last before it; undefined if there is none.
export function nextOf(numbers, one, way) {
  return way > 0 ? numbers[countUpTo(numbers.length, (i) => numbers[i], one)] : numbers[countUpTo(numbers.length, (i) => numbers[i], one - 1) - 1];
}

export function unfold(stretches) {
  const numbers = [];
  for (let i = 0; i < stretches.length; i += 2) {
    for (let k = 0; k < stretches[i + 1]; k++) numbers.push(stretches[i] < 0 ? -1 : stretches[i] + k);
  }
  return numbers;
}

// The n-th number of stretches, from 0; undefined if there are fewer.
function within(stretches, n) {
  for (let i = 0; i < stretches.length; i += 2) {
    if (n < stretches[i + 1]) return stretches[i] < 0 ? -1 : stretches[i] + n;
    n -= stretches[i + 1];
  }
  return undefined;
}

const total = (stretches) => stretches.reduce((sum, one, i) => sum + (i % 2 ? one : 0), 0);

// A list that grows at its end, loses its end, and loses its beginning to a snapshot. Any item after any event is found
// without making the list again, in steps that grow with the logarithm of its changes.
class LogHistory {
  constructor(changes) {
    this.changes = changes; // [event, base, its term, how much was kept, what was added], by event
    const n = changes.length;
    this.events = Int32Array.from(changes, (change) => change[0]);
    this.keeps = Int32Array.from(changes, (change) => change[3]);
    this.ends = Int32Array.from(changes, (change) => change[3] + total(change[4]));
    // Of each change: the last one before it that kept less, and one far behind along these; so that a walk is short.
    this.less = new Int32Array(n);
    this.far = new Int32Array(n);
    const depth = new Int32Array(n);
    for (let i = 0; i < n; i++) {
      let before = i - 1;
      while (before >= 0 && this.keeps[before] >= this.keeps[i]) before = this.less[before];
      this.less[i] = before;
      depth[i] = before < 0 ? 0 : depth[before] + 1;
      if (before < 0) this.far[i] = -1;
      else {
        const far = this.far[before];
        const further = far < 0 ? -1 : this.far[far];
        const one = depth[before] - (far < 0 ? -1 : depth[far]);
        const two = (far < 0 ? -1 : depth[far]) - (further < 0 ? -1 : depth[further]);
        this.far[i] = far >= 0 && one === two ? further : before;
      }
    }
  }

  // The log after an event. `changed`: what was kept by the changes from that event on, or null.
  at(event, from = event) {
    const last = countUpTo(this.events.length, (i) => this.events[i], event) - 1;
    if (last < 0) return { base: 0, baseTerm: 0, end: 0, changed: null, since: -1, entry: () => undefined };
    const [, base, baseTerm] = this.changes[last];
    let changed = null;
    for (let i = last; i >= 0 && this.events[i] >= from; i--) changed = Math.min(changed ?? Infinity, this.keeps[i]);
    return { base, baseTerm, end: this.ends[last], changed, since: this.events[last], entry: (index) => this.#entry(last, index) };
  }

  // The item at an index, from 1; -1: there is one, and nothing has shown it; undefined: there is none.
  #entry(last, index) {
    if (index > this.ends[last]) return undefined;
    const i = this.#changeOf(last, index);
    return i < 0 ? -1 : within(this.changes[i][4], index - this.keeps[i] - 1) ?? -1;
  }

  // The last change that had a say in what is at an index; -1 if none had.
  #changeOf(last, index) {
    let i = last;
    while (i >= 0 && this.keeps[i] >= index) i = this.far[i] >= 0 && this.keeps[this.far[i]] >= index ? this.far[i] : this.less[i];
    return i;
  }

  // The event that brought what is at an index after an event; -1 if none is known.
  cameAt(event, index) {
    const last = countUpTo(this.events.length, (i) => this.events[i], event) - 1;
    const i = last < 0 ? -1 : this.#changeOf(last, index);
    return i < 0 ? -1 : this.events[i];
  }
}

// Where the logs differ: [event, the first index at which not all have the same], at every change of that. And when they
// part, two having other entries at one index, or agree again: [event, that index, or 0].
function divergences(logs) {
  const found = [];
  const diverged = [];
  let agreed = 0; // up to here nobody has another entry than the others have
  let apart = 0;
  const now = logs.map(() => ({ base: 0, end: 0, entries: [] }));
  const all = logs.flatMap((log, who) => log.changes.map((_, i) => [log.events[i], who, i])).sort((a, b) => a[0] - b[0] || a[2] - b[2]);
  let parts = 1;
  let first = 1;
  for (const [event, who, i] of all) {
    const log = now[who];
    const [, base, , keep, added] = logs[who].changes[i];
    const kept = Math.min(keep, log.end);
    while (log.end < keep) log.entries[++log.end] = -1;
    log.entries.length = keep + 1;
    for (const number of unfold(added)) log.entries.push(number);
    log.end = log.entries.length - 1;
    log.base = base;
    const begin = Math.max(...now.map((one) => one.base)) + 1;
    if (begin !== first || kept < parts) {
      let index = begin !== first ? begin : Math.max(begin, kept + 1);
      const last = Math.max(...now.map((one) => one.end));
      while (index <= last && now.every((one) => one.entries[index] === now[0].entries[index])) index++;
      first = begin;
      if (index !== parts) found.push(event, (parts = index));
    }
    agreed = Math.max(begin - 1, Math.min(agreed, kept));
    const last = Math.max(...now.map((one) => one.end));
    while (agreed < last && alike(now, agreed + 1)) agreed++;
    const where = agreed < last ? agreed + 1 : 0;
    if (Boolean(where) !== Boolean(apart)) {
      if (diverged.at(-2) === event) diverged.splice(-2);
      else diverged.push(event, where);
    }
    apart = where;
  }
  return { differ: found, diverged };
}

// Whether those that are known to have an entry there have the same one.
function alike(logs, index) {
  let seen = -1;
  for (const { base, entries } of logs) {
    const entry = index > base ? entries[index] ?? -1 : -1;
    if (entry >= 0 && seen >= 0 && entry !== seen) return false;
    if (entry >= 0) seen = entry;
  }
  return true;
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
    const { differ, diverged } = divergences(this.peers.map((lane) => this.logs[lane]));
    this.differ = differ;
    this.diverged = new Map();
    for (let i = 0; i < diverged.length; i += 2) this.diverged.set(diverged[i], diverged[i + 1]);
    this.ofLane = byLane(data.lanes.length, n, this.lane);
    this.followers = data.states.map((state) => state && byFollower(state.indexes, data.lanes.length));
    this.jumps = Object.fromEntries(Object.entries(data.jumps).map(([name, places]) => [name, Int32Array.from(places)]));
    this.jumps.divergence = Int32Array.from(this.diverged.keys());
    // What is accused: messages, or operations of clients that cannot be put in one order.
    const operations = data.operations.filter(([, , , , accused]) => accused).map(([, from, to]) => (to >= 0 ? to : from));
    this.places = data.run.failed ? [...(data.run.places ?? []), ...operations].sort((a, b) => a - b) : [];
    this.evidence = new Set(this.places);
    this.failAt = data.run.failed ? this.places.at(-1) ?? n - 1 : -1;
    this.operationAt = new Map();
    this.operationsOf = data.lanes.map(() => []); // of each client one after the other
    data.operations.forEach(([lane, from, to], number) => {
      this.operationsOf[lane].push(number);
      this.operationAt.set(from, number);
      if (to >= 0) this.operationAt.set(to, number);
    });
    this.legs = this.#legs();
  }

  // From which event on something counts as just changed. Of a live run: from the first event of a step.
  newFrom(event) {
    return event;
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
    const event = Math.max(countUpTo(this.count, (i) => this.time[i], ns) - 1, 0);
    return lane < 0 ? event : nextOf(this.ofLane[lane], event + 1, -1) ?? event;
  }

  // A field of a peer after an event, whether it changed there, and where it last did (-1: never).
  field(lane, name, event, otherwise = 0) {
    const changes = this.states[lane][name];
    const row = changes ? lastBefore(changes, event) : -1;
    return row < 0 ? { value: otherwise, changed: false, since: -1 } : { value: changes[2 * row + 1], changed: changes[2 * row] >= this.newFrom(event), since: changes[2 * row] };
  }

  // The first index at which not all logs have the same; behind all of them if there is none.
  partsAt(event) {
    const row = lastBefore(this.differ, event);
    return row < 0 ? 1 : this.differ[2 * row + 1];
  }

  // What a leader has told of its followers: by lane, {next, match, changed}.
  indexes(lane, event) {
    const flat = this.states[lane].indexes;
    const { forgotten, rows } = this.followers[lane];
    const last = lastBefore(flat, event, 4);
    const since = nextOf(forgotten, last + 1, -1) ?? -1;
    const known = new Map();
    rows.forEach((ofIt, follower) => {
      const row = nextOf(ofIt, last + 1, -1) ?? -1;
      if (row > since) known.set(follower, { next: flat[4 * row + 2], match: flat[4 * row + 3], changed: flat[4 * row] >= this.newFrom(event), since: flat[4 * row] });
    });
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

// The events of each lane.
function byLane(lanes, count, lane) {
  const sizes = new Int32Array(lanes);
  for (let i = 0; i < count; i++) if (lane[i] >= 0) sizes[lane[i]]++;
  const found = Array.from(sizes, (size) => new Int32Array(size));
  sizes.fill(0);
  for (let i = 0; i < count; i++) if (lane[i] >= 0) found[lane[i]][sizes[lane[i]]++] = i;
  return found;
}

// Which of a leader's rows are of which follower, and in which nothing was known any more.
function byFollower(flat, lanes) {
  const forgotten = [];
  const rows = Array.from({ length: lanes }, () => []);
  for (let row = 0; row < flat.length / 4; row++) (flat[4 * row + 1] < 0 ? forgotten : rows[flat[4 * row + 1]]).push(row);
  return { forgotten, rows };
}
