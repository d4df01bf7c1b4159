// The panel: the current moment in words, the state of everybody, and the message with its causes and effects.

import { unfold } from "./data.js";
import { byId, el, fill, seconds, span } from "./dom.js";
import { CUT, HELD, PAUSED, UP } from "./lanes.js";
import { ROLES } from "./layout.js";

const BOX = 37; // the width of a log box with its gap
const MOST_LINKS = 8;
const LETTER = ["F", "C", "L"];

export class Panel {
  constructor(run, go) {
    this.run = run;
    this.go = go;
    this.logFrom = null; // the first index in view, if somebody has chosen it
    this.all = false; // the whole chain
  }

  showFailure() {
    const { run } = this.run;
    const box = byId("failure");
    if (!run.failed) return;
    box.hidden = false;
    const places = this.run.places;
    fill(
      box,
      el("h2", {}, "What is wrong"),
      el("p", { class: "headline" }, run.headline),
      places.map((place) => el("button", { class: "evidence", onclick: () => this.go(place) }, `${seconds(this.run.time[place])} s  ${this.sentence(place)}`)),
      run.evidence?.length ? el("details", { open: !places.length && !run.causes?.length }, el("summary", {}, "Evidence"), el("pre", {}, run.evidence.join("\n"))) : null,
      (run.causes ?? []).map((cause) => el("p", { class: "cause" }, cause.replace(/\s+/g, " "))),
      el("p", { class: "quiet" }, "again: ", el("code", {}, run.replay)),
    );
  }

  show(event) {
    this.#showNow(event);
    this.#showPeers(event);
    this.#showDetails(event);
  }

  // An event in one line, with who.
  sentence(event) {
    const { run } = this;
    const words = run.text(run.words[event]);
    const call = run.call[event];
    if (call < 0) return run.lane[event] < 0 || run.topics[run.topicOf[event]] === "tester" ? words : `${run.name(run.lane[event])}: ${words}`;
    const from = run.name(run.calls.from[call]);
    const to = run.name(run.calls.to[call]);
    return {
      send: `${from} → ${to}: ${words}`,
      deliver: `${to} gets from ${from}: ${words}`,
      duplicate: `${to} gets it twice from ${from}`,
      answer: `${to} answers ${from}: ${words}`,
      reply: `${from} hears from ${to}: ${words}`,
      drop: `${run.calls.answered[call] >= 0 && run.calls.answered[call] < event ? "reply" : "request"} ${from} → ${to} lost: ${words}`,
    }[run.kind(event)];
  }

  #showNow(event) {
    const { run } = this;
    const became = (run.becameAt.get(event) ?? []).map(([lane, text]) => el("p", { class: "became" }, `${run.name(lane)}: ${run.text(text)}`));
    fill(
      byId("now"),
      el("p", { class: "moment" }, el("b", { id: "clock" }, `${seconds(run.time[event])} s`), el("span", { class: "quiet" }, ` event ${event + 1} of ${run.count.toLocaleString("en")}`)),
      el("p", { id: "sentence", class: run.evidence.has(event) ? "accused" : "" }, this.sentence(event)),
      became,
    );
  }

  // ---- everybody -------------------------------------------------------------------------------------------------

  #showPeers(event) {
    const { run } = this;
    const room = Math.max(4, Math.floor((byId("panel").clientWidth - 34) / BOX));
    const logs = run.peers.map((lane) => run.logs[lane].at(event));
    const last = Math.max(0, ...logs.map((log) => log.base + log.entries.length));
    const changed = logs.map((log) => log.changed).filter((index) => index !== null);
    // Where the logs part is in view, and what has just changed before all.
    let from = Math.max(1, Math.min(last - room + 1, firstDifference(logs) - 3));
    if (changed.length) {
      const news = Math.min(...changed) + 1;
      if (news < from || news > from + room - 1) from = Math.max(1, Math.min(news - 1, last - room + 1));
    }
    if (this.logFrom !== null) from = Math.max(1, Math.min(this.logFrom, last - 1));
    this.shownFrom = from;
    const to = Math.min(last, from + room - 1);
    const indexes = [];
    for (let index = from; index <= to; index++) indexes.push(el("span", { class: "index" }, index));
    fill(
      byId("peers"),
      run.peers.map((lane, i) => this.#peer(lane, event, logs[i], from, to)),
      last ? el("div", { class: "log indexes" }, indexes) : null,
      last > room ? el("p", { class: "quiet logmove" }, el("button", { onclick: () => this.moveLog(event, -room), title: "," }, "◂ earlier"), ` entries ${from} to ${to} of ${last} `, el("button", { onclick: () => this.moveLog(event, room), title: "." }, "later ▸")) : null,
      this.#fields(event),
    );
  }

  moveLog(event, by) {
    this.logFrom = Math.max(1, (this.logFrom ?? this.shownFrom) + by);
    this.#showPeers(event);
  }

  #peer(lane, event, log, from, to) {
    const { run } = this;
    const at = (name, otherwise) => run.field(lane, name, event, otherwise);
    const condition = at("condition").value;
    const up = condition & UP;
    const role = at("role").value;
    const fact = (name, known, shown) => el("span", { class: known.changed ? "fact new" : "fact", "data-fact": name }, `${name} `, el("b", {}, shown ?? known.value));
    const term = at("term");
    const vote = at("vote", -1);
    const votes = at("votes", "");
    const kept = up ? [fact("commit", at("commit")), fact("applied", at("applied"))] : [];
    const states = [
      !up && "down",
      condition & PAUSED && "paused",
      condition & CUT && "cut off",
      condition & HELD && up && "clock held",
    ].filter(Boolean);
    const head = el(
      "div",
      { class: "facts" },
      el("span", { class: `badge ${up ? ROLES[role] : "down"}` }, up ? LETTER[role] : "✗"),
      el("b", { class: at("role").changed || at("condition").changed ? "who new" : "who" }, run.name(lane)),
      states.map((word) => el("span", { class: "condition" }, word)),
      fact("term", term),
      vote.value >= 0 ? fact("voted", vote, run.lanes[vote.value].name) : null,
      role === 1 && up && votes.value ? fact("votes", votes, `${votes.value.split(" ").join(",")} of ${run.peers.length}`) : null,
      kept,
    );
    return el("article", { class: run.lane[event] === lane ? "peer now" : "peer", "data-peer": run.lanes[lane].name }, head, this.#log(log, from, to, at("commit").value, at("applied").value), role === 2 && up ? this.#indexes(lane, event) : null);
  }

  #log(log, from, to, commit) {
    const { run } = this;
    const boxes = [];
    for (let index = from; index <= to; index++) {
      const number = log.entries[index - log.base - 1];
      const isNew = log.changed !== null && index > log.changed;
      if (index <= log.base) boxes.push(el("span", { class: "box gone", title: `in the snapshot to ${log.base}` }, el("i", {}, index === log.base ? `t${log.baseTerm}` : ""), "snap"));
      else if (number === undefined) boxes.push(el("span", { class: "box none" }));
      else if (number < 0) boxes.push(el("span", { class: "box unknown", title: "there is an entry here, and no message has shown it" }, "?"));
      else {
        const term = run.entries.term[number];
        const text = run.text(run.entries.text[number]);
        const box = el("span", { class: `box${index <= commit ? " committed" : ""}${isNew ? " new" : ""}`, title: `entry ${index}, term ${term}: ${text}${index <= commit ? ", known to be committed" : ""}`, "data-index": index }, el("i", {}, `t${term}`), text);
        box.style.setProperty("--hue", (term * 67) % 360);
        boxes.push(box);
      }
    }
    const end = log.base + log.entries.length;
    if (to >= from && end < from) return el("div", { class: "log quiet" }, end ? `its log ends at ${end}` : "its log is empty");
    return boxes.length ? el("div", { class: "log" }, boxes) : null;
  }

  #indexes(lane, event) {
    const { run } = this;
    const known = run.indexes(lane, event);
    if (!known.size) return null;
    const one = (follower) => {
      const { next, match, changed } = known.get(follower);
      return el("span", { class: changed ? "fact new" : "fact" }, `${run.lanes[follower].name}: `, el("b", {}, `${next}/${match}`));
    };
    return el("div", { class: "facts indexes" }, el("span", { class: "quiet" }, "next/match"), run.peers.filter((follower) => known.has(follower)).map(one));
  }

  // What the peer itself holds, where the page was made with --fields.
  #fields(event) {
    const { run } = this;
    const lane = run.lane[event];
    const of = lane >= 0 ? run.fields[lane] : null;
    if (!of || !(run.field(lane, "condition", event).value & UP)) return null;
    const rows = [];
    for (const [name, history] of Object.entries(run.fieldLists[lane])) {
      const { entries, changed } = history.at(event);
      const first = Math.max(0, Math.min(entries.length - 12, changed ?? Infinity));
      const items = entries.slice(first, first + 16).map((item, i) => el("span", { class: changed !== null && first + i >= changed ? "entry new" : "entry" }, run.text(item)));
      rows.push(el("tr", { class: changed !== null ? "new" : "" }, el("th", {}, name), el("td", {}, first ? `… ${first} before ` : "", items, first + 16 < entries.length ? ` … ${entries.length} in all` : "", entries.length ? "" : "empty")));
    }
    for (const [name, changes] of Object.entries(of.values)) {
      const known = this.#fieldAt(changes, event);
      if (known) rows.push(el("tr", { class: known.changed ? "new" : "" }, el("th", {}, name), el("td", {}, known.text)));
    }
    const line = this.#fieldAt(of.lines, event);
    return el("details", { open: true, class: "own" }, el("summary", {}, `${run.name(lane)}'s own fields`), line?.changed ? el("p", { class: "quiet" }, `at ${line.text}`) : null, el("table", {}, rows));
  }

  #fieldAt(flat, event) {
    let low = 0;
    let high = flat.length / 2;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (flat[2 * middle] <= event) low = middle + 1;
      else high = middle;
    }
    return low ? { text: this.run.text(flat[2 * low - 1]), changed: flat[2 * low - 2] === event } : null;
  }

  // ---- one message -----------------------------------------------------------------------------------------------

  #showDetails(event) {
    const { run } = this;
    const call = run.call[event];
    fill(
      byId("details"),
      call >= 0 ? this.#message(call, event) : null,
      this.#operation(event),
      this.#chain("Because of", run.causesOf(event), run.kind(event) === "send" || run.kind(event) === "persist" ? "nothing that came in at this instant: its own clock" : ""),
      this.#chain("What it brought about", run.effectsOf(event), ""),
    );
  }

  #message(call, event) {
    const { run } = this;
    const c = run.calls;
    const original = c.original[call];
    const sent = original >= 0 ? c.sent[original] : c.sent[call];
    const step = (word, place) =>
      place >= 0 ? el("button", { class: place === event ? "step here" : "step", onclick: () => this.go(place) }, `${word} ${seconds(run.time[place])}${place !== sent && sent >= 0 ? ` (+${span(run.time[place] - run.time[sent])})` : ""}`) : null;
    const lost = (place) => (place >= 0 ? `✗ ${run.text(run.words[place])}` : "");
    const unanswered = c.delivered[call] < 0 && c.lost_request[call] < 0;
    return el(
      "div",
      { class: "message" },
      el("h2", {}, `${run.text(c.kind[call])} #${c.id[call]}  ${run.name(c.from[call])} → ${run.name(c.to[call])}${original >= 0 ? " (the same request a second time)" : ""}`),
      el("div", { class: "fate" }, step("sent", sent), step("arrived", c.delivered[call]), step(lost(c.lost_request[call]), c.lost_request[call]), step("answered", c.answered[call]), step("reply arrived", c.replied[call]), step(lost(c.lost_reply[call]), c.lost_reply[call]), unanswered ? el("span", { class: "quiet" }, "still on its way when the run ended") : null),
      this.#value("asks", c.args[call], call),
      this.#value("answer", c.reply[call], call),
    );
  }

  #value(title, number, call) {
    if (number < 0) return null;
    const value = this.run.values[number];
    const rows = value !== null && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : [["", value]];
    return el("table", { class: "value" }, el("caption", {}, title), rows.map(([name, held]) => el("tr", {}, el("th", {}, name), el("td", {}, this.#shown(held, value)))));
  }

  #shown(held, within) {
    const { run } = this;
    if (held && typeof held === "object" && held.$entries) {
      const numbers = unfold(held.$entries);
      if (!numbers.length) return "none";
      const first = Number.isInteger(within?.prev_log_index) ? within.prev_log_index + 1 : null;
      const told = numbers.slice(0, 40).map((number, i) => el("span", { class: "entry" }, `${first === null ? "" : `${first + i}: `}t${run.entries.term[number]} ${run.text(run.entries.text[number])}`));
      return el("span", {}, told, numbers.length > 40 ? ` … ${numbers.length} in all` : "");
    }
    return typeof held === "string" ? held : JSON.stringify(held);
  }

  #operation(event) {
    const { run } = this;
    const number = run.operationAt.get(event);
    if (number === undefined) return null;
    const [lane, from, to, text, accused] = run.operations[number];
    return el("div", { class: "message" }, el("h2", {}, `${run.name(lane)}: ${run.text(text)}`), accused ? el("p", { class: "accused" }, "One of the operations that cannot be put in one order.") : null, el("div", { class: "fate" }, el("button", { class: "step", onclick: () => this.go(from) }, `called ${seconds(run.time[from])}`), to >= 0 ? el("button", { class: "step", onclick: () => this.go(to) }, `returned ${seconds(run.time[to])} (+${span(run.time[to] - run.time[from])})`) : el("span", { class: "quiet" }, "never returned")));
  }

  #chain(title, events, none) {
    const { run } = this;
    if (!events.length) return none ? el("div", { class: "chain" }, el("h2", {}, title), el("p", { class: "quiet" }, none)) : null;
    const shown = this.all ? events : events.slice(0, MOST_LINKS);
    const items = shown.map((place) => el("li", {}, el("button", { onclick: () => this.go(place) }, el("span", { class: "quiet" }, `${seconds(run.time[place], 4)} `), this.sentence(place))));
    return el("div", { class: "chain" }, el("h2", {}, title), el("ol", {}, items), shown.length < events.length ? el("button", { onclick: () => ((this.all = true), this.go(null)) }, `all ${events.length}`) : null);
  }
}

// The first index at which not all logs have the same; behind all of them if there is none.
function firstDifference(logs) {
  const first = Math.max(...logs.map((log) => log.base)) + 1;
  const last = Math.max(...logs.map((log) => log.base + log.entries.length));
  for (let index = first; index <= last; index++) {
    const here = logs[0].entries[index - logs[0].base - 1];
    if (logs.some((log) => log.entries[index - log.base - 1] !== here)) return index;
  }
  return last + 1;
}
