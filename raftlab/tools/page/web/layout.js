// Where everything stands: which events are shown, and at which height each of them is.
//
// In rows every instant has a line of its own, and long gaps are shortened. In time, heights are true to the clock.

import { countUpTo, nextOf } from "./data.js";

export const ROLES = ["follower", "candidate", "leader"];
export const ROW = 17;
const BLOCK = 256;
const BARE = 7; // a row without a word: only an arrow ends there
const MESSAGE = new Set(["send", "deliver", "duplicate", "answer", "reply", "drop"]);
const WORDLESS = new Set(["deliver", "reply", "drop", "duplicate"]);

export const isBanner = (run, event) => {
  const topic = run.topics[run.topicOf[event]];
  return topic === "tester" || (run.lane[event] < 0 && !MESSAGE.has(run.kind(event)));
};

export function passes(run, filter, event) {
  if (isBanner(run, event) && !filter.matches) return true;
  if (filter.topics && !filter.topics.has(run.topicOf[event])) {
    const call = run.call[event];
    const lost = call >= 0 && (run.calls.lost_request[call] >= 0 || run.calls.lost_reply[call] >= 0 || run.calls.original[call] >= 0);
    if (!(lost && filter.network)) return false;
  }
  if (filter.term != null && run.termOf[event] !== filter.term) return false;
  if (filter.kind != null && run.kindOf[event] !== filter.kind) return false;
  if (filter.lanes) {
    const call = run.call[event];
    if (call < 0) {
      if (!filter.lanes.has(run.lane[event])) return false;
    } else {
      const from = run.calls.from[call];
      // What clients ask is theirs alone: a peer is asked by many.
      if (!filter.lanes.has(from) && (!run.lanes[from]?.peer || !filter.lanes.has(run.calls.to[call]))) return false;
    }
  }
  return !filter.matches || filter.matches.has(event);
}

export class Layout {
  // `folded`: whether repetitions are; `open`: the folds that are shown all the same.
  constructor(run, filter, folded, open) {
    this.run = run;
    this.visible = new Uint8Array(run.count);
    this.row = new Float64Array(run.count); // heights in rows
    this.labels = []; // {y, event, lane, text, tone, fold}
    this.legs = []; // of what is shown
    this.events = []; // shown, in order; then those of each lane
    this.eventsOf = run.lanes.map(() => []);
    this.timed = []; // shown, or the first of a fold that is
    this.#lay(filter, folded, open);
  }

  #lay(filter, folded, open) {
    const { run } = this;
    const said = new Set(); // requests of this instant
    const used = new Array(run.lanes.length).fill(null);
    let y = 12;
    let height = 0;
    let instant = -1;
    let banner = false;
    const next = () => {
      y += height;
      height = BARE;
      used.fill(null);
      banner = false;
    };
    const label = (event, lane, text, tone, fold = -1) => {
      if (lane >= 0 ? used[lane] !== null || banner : used.some((one) => one !== null) || banner) next();
      this.labels.push({ y, event, lane, wordings: typeof text === "string" ? [text] : text, tone, fold });
      height = ROW;
      if (lane >= 0) used[lane] = true;
      else banner = true;
    };
    for (let i = 0; i < run.count; i++) {
      const fold = run.fold[i];
      const hidden = run.shown[i] === 1 ? folded : run.shown[i] === 2 && folded && !open.has(fold);
      const first = hidden && fold >= 0 && run.folds[fold][0] === i && passes(run, filter, i);
      if ((hidden && !first) || !passes(run, filter, i)) {
        this.row[i] = y;
        continue;
      }
      if (run.time[i] !== instant) {
        if (instant >= 0) y += gap(run.time[i] - instant);
        next();
        instant = run.time[i];
        said.clear();
      }
      if (first) {
        for (const [lane, text] of run.folds[fold][2]) {
          if (!filter.lanes || filter.lanes.has(lane)) label(i, lane, run.wordings[text], "folded", fold);
        }
        this.row[i] = y;
        this.timed.push(i);
        continue;
      }
      this.visible[i] = 1;
      this.events.push(i);
      this.timed.push(i);
      const lane = run.lane[i];
      if (lane >= 0) this.eventsOf[lane].push(i);
      if (isBanner(run, i)) {
        label(i, -1, run.text(run.words[i]), this.#bannerTone(i));
      } else {
        for (const [who, text, role] of run.becameAt.get(i) ?? []) label(i, who, run.wordings[text], ROLES[role]);
        const words = this.#words(i);
        // Equal requests of one instant are one line.
        const key = `${lane} ${words?.[0]}`;
        if (words && !(run.kind(i) === "send" && said.has(key))) label(i, lane, words, this.#tone(i));
        if (run.kind(i) === "send") said.add(key);
      }
      this.row[i] = y;
    }
    if (run.run.failed != null && run.count) {
      next();
      y += 6;
      label(run.count - 1, -1, run.run.failed ? `FAILED: ${run.run.headline}` : "the test has passed", run.run.failed ? "accused" : "heal");
    }
    this.height = y + height + 40;
    for (const leg of run.legs) {
      const [, , from, to] = leg;
      if (this.visible[from] || (to >= 0 && this.visible[to])) this.legs.push(leg);
    }
    this.#reach();
    this.labelsOf = new Map(); // by lane, -1 is the tester
    for (const one of this.labels) {
      if (!this.labelsOf.has(one.lane)) this.labelsOf.set(one.lane, []);
      this.labelsOf.get(one.lane).push(one);
    }
  }

  // Up to where the ways reach: of each block of them, and of all blocks up to it.
  #reach() {
    const blocks = Math.ceil(this.legs.length / BLOCK);
    this.reach = new Int32Array(blocks).fill(-1);
    this.reachSoFar = new Int32Array(blocks);
    this.legs.forEach(([, , , to, lost], i) => {
      const block = Math.floor(i / BLOCK);
      this.reach[block] = Math.max(this.reach[block], to, lost);
    });
    for (let i = 0; i < blocks; i++) this.reachSoFar[i] = Math.max(this.reach[i], i ? this.reachSoFar[i - 1] : -1);
  }

  // The ways that are to be seen between two events: those that begin there, and those that began before and still fly.
  // If there are more than `most`: only how many begin there.
  legsIn(first, last, most) {
    const { legs } = this;
    const low = countUpTo(legs.length, (i) => legs[i][2], first - 1);
    const high = countUpTo(legs.length, (i) => legs[i][2], last);
    if (high - low > most) return { found: [], crowd: high - low };
    const found = [];
    for (let block = Math.floor((low - 1) / BLOCK); block >= 0 && this.reachSoFar[block] >= first; block--) {
      if (this.reach[block] < first) continue;
      for (let i = Math.min(low, (block + 1) * BLOCK) - 1; i >= block * BLOCK; i--) {
        if (Math.max(legs[i][3], legs[i][4]) >= first) found.push(legs[i]);
      }
    }
    for (let i = low; i < high; i++) found.push(legs[i]);
    return found.length > most ? { found: [], crowd: found.length } : { found, crowd: 0 };
  }

  #words(event) {
    const { run } = this;
    const kind = run.kind(event);
    if (WORDLESS.has(kind)) return null;
    const wordings = run.wordings[run.words[event]];
    const call = run.call[event];
    if (call >= 0) {
      const lost = kind === "send" ? run.calls.delivered[call] < 0 && run.calls.lost_request[call] : run.calls.replied[call] < 0 && run.calls.lost_reply[call];
      if (lost !== false && lost >= 0) {
        const why = run.text(run.words[lost]);
        return [...wordings.map((text) => `${text} ✗ ${why}`), `${wordings.at(-1)} ✗`];
      }
    }
    return wordings;
  }

  #tone(event) {
    const { run } = this;
    const kind = run.kind(event);
    const call = run.call[event];
    if (run.evidence.has(event)) return "accused";
    if (call < 0) return kind;
    if (kind === "send" && run.calls.delivered[call] < 0 && run.calls.lost_request[call] >= 0) return "lost";
    if (kind === "answer") return "answer";
    return run.text(run.calls.kind[call]);
  }

  #bannerTone(event) {
    const { run } = this;
    const kind = run.kind(event);
    if (kind === "phase" || kind === "step") return "phase";
    return run.heals.includes(kind) ? "heal" : "fault";
  }

  // The first shown event behind one, or before it; of one lane, if it is given. -1 if there is none.
  step(event, way, lane = -1) {
    return nextOf(lane < 0 ? this.events : this.eventsOf[lane], event, way) ?? -1;
  }

  // The first event whose row is not above that height.
  eventAtRow(y) {
    return Math.min(countUpTo(this.run.count, (i) => (this.row[i] < y ? 0 : 1), 0), this.run.count - 1);
  }

  // The first event whose row is below that of another; undefined if there is none.
  below(event) {
    const next = countUpTo(this.run.count, (i) => this.row[i], this.row[event]);
    return next < this.run.count ? next : undefined;
  }
}

// How much of a pause is shown.
function gap(ns) {
  return Math.min(40, 6 * Math.log2(1 + ns / 4e6));
}
