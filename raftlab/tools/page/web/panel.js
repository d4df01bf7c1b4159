// The panel: the current moment in words, the state of everybody, and the message with its causes and effects.

import { lastBefore, unfold } from "./data.js";
import { byId, el, fill, refill, seconds, span } from "./dom.js";
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
    this.fieldsOf = null; // the lane whose own fields are shown; null: that of the current event
    this.peers = new Map(); // the elements of each
    this.own = new Map();
    this.chains = new Map();
    this.resize();
  }

  showFailure() {
    const { run } = this.run;
    const box = byId("failure");
    box.hidden = !run.failed;
    if (!run.failed) return;
    const places = this.run.places;
    fill(
      box,
      el("h2", {}, "Failure"),
      el("p", { class: "headline" }, run.headline),
      places.map((place) => el("button", { class: "evidence", onclick: () => this.go(place) }, `${seconds(this.run.time[place])} s  ${this.sentence(place)}`)),
      run.evidence?.length ? el("details", { open: !places.length && !run.causes?.length }, el("summary", {}, "Evidence"), el("pre", {}, run.evidence.join("\n"))) : null,
      (run.causes ?? []).map((cause) => el("p", { class: "cause" }, cause.replace(/\s+/g, " "))),
      run.replay ? el("p", { class: "quiet" }, "replay: ", el("code", {}, run.replay)) : null,
    );
  }

  show(event) {
    this.event = event;
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
      deliver: `${to} receives from ${from}: ${words}`,
      duplicate: `${to} receives a duplicate from ${from}`,
      answer: `${to} answers ${from}: ${words}`,
      reply: `${from} receives the reply of ${to}: ${words}`,
      drop: `${run.calls.answered[call] >= 0 && run.calls.answered[call] < event ? "reply" : "request"} ${from} → ${to} lost: ${words}`,
    }[run.kind(event)];
  }

  #showNow(event) {
    const { run } = this;
    const became = (run.becameAt.get(event) ?? []).map(([lane, text]) => `${run.name(lane)}: ${run.text(text)}`);
    const told = `${run.evidence.has(event) ? "accused" : ""} ${this.sentence(event)}`;
    refill(byId("now"), [
      [`at ${event}`, () => el("p", { class: "moment" }, el("b", { id: "clock" }, `${seconds(run.time[event])} s`), el("span", { class: "quiet" }, ` event ${event + 1} of ${run.count.toLocaleString("en")}`))],
      [told, () => el("p", { id: "sentence", class: run.evidence.has(event) ? "accused" : "" }, this.sentence(event))],
      run.diverged.has(event) ? [`diverged ${event}`, () => el("p", { class: "became" }, run.diverged.get(event) ? `the logs diverge at entry ${run.diverged.get(event)}` : "the logs agree again")] : null,
      ...became.map((words, i) => [`became ${i} ${words}`, () => el("p", { class: "became" }, words)]),
    ]);
  }

  // ---- everybody -------------------------------------------------------------------------------------------------

  // How many boxes of a log there is room for. Asked when the window changes: it makes a browser lay out the page.
  resize() {
    this.room = Math.max(4, Math.floor((byId("panel").clientWidth - 34) / BOX));
  }

  #showPeers(event) {
    const { run, room } = this;
    const logs = run.peers.map((lane) => run.logs[lane].at(event, run.newFrom(event)));
    const last = Math.max(0, ...logs.map((log) => log.end));
    const changed = logs.map((log) => log.changed).filter((index) => index !== null);
    // Where the logs part is in view, and what has just changed before all.
    let from = Math.max(1, Math.min(last - room + 1, run.partsAt(event) - 3));
    if (changed.length) {
      const news = Math.min(...changed) + 1;
      if (news < from || news > from + room - 1) from = Math.max(1, Math.min(news - 1, last - room + 1));
    }
    if (this.logFrom !== null) from = Math.max(1, Math.min(this.logFrom, last - 1));
    this.shownFrom = from;
    const to = Math.min(last, from + room - 1);
    run.peers.forEach((lane, i) => this.#peer(lane, event, logs[i], from, to));
    const move = (by, key, words) => el("button", { onclick: () => this.moveLog(by), title: key }, words);
    refill(byId("peers"), [
      ...run.peers.map((lane) => [`peer ${lane}`, () => this.peers.get(lane).all]),
      last ? [`indexes ${from} ${to}`, () => el("div", { class: "log indexes" }, Array.from({ length: to - from + 1 }, (_, i) => el("span", { class: "index" }, from + i)))] : null,
      last > room ? [`move ${from} ${to} ${last}`, () => el("p", { class: "quiet logmove" }, move(-room, ",", "◂ earlier"), ` entries ${from} to ${to} of ${last} `, move(room, ".", "later ▸"))] : null,
      this.#fields(event),
    ]);
  }

  moveLog(by) {
    this.logFrom = Math.max(1, (this.logFrom ?? this.shownFrom) + by);
    this.#showPeers(this.event);
  }

  // Its parts are made once, and what has changed is put into them.
  #peer(lane, event, log, from, to) {
    const { run } = this;
    if (!this.peers.has(lane)) {
      const all = el("article", { "data-peer": run.lanes[lane].name });
      // A box to the event that brought the entry.
      const log = el("div", { class: "log", onclick: (e) => this.#toEntry(lane, e.target.closest("[data-index]")) });
      this.peers.set(lane, { all, log });
    }
    const { all, log: boxes } = this.peers.get(lane);
    const at = (name, otherwise) => run.field(lane, name, event, otherwise);
    const condition = at("condition").value;
    const up = condition & UP;
    const role = at("role").value;
    const [term, vote, votes, commit, applied] = [at("term"), at("vote", -1), at("votes", ""), at("commit"), at("applied")];
    const states = [!up && "down", condition & PAUSED && "paused", condition & CUT && "disconnected", condition & HELD && up && "clock frozen"].filter(Boolean);
    const facts = [["term", term.value, term]];
    if (vote.value >= 0) facts.push(["voted for", run.lanes[vote.value].name, vote]);
    if (role === 1 && up && votes.value) facts.push(["votes", votesTold(votes.value.split(" "), run.peers.length), votes]);
    if (up) facts.push(["commit", commit.value, commit], ["applied", applied.value, applied]);
    const isNew = at("role").changed || at("condition").changed;
    const since = Math.max(at("role").since, at("condition").since);
    const head = () =>
      el(
        "div",
        { class: "facts" },
        el("span", { class: `badge ${up ? ROLES[role] : "down"}` }, up ? LETTER[role] : "✗"),
        this.#origin(since, { class: isNew ? "who new" : "who" }, el("b", {}, run.name(lane))),
        states.map((word) => el("span", { class: "condition" }, word)),
        facts.map(([name, value, known]) => this.#origin(known.since, { class: known.changed ? "fact new" : "fact", "data-fact": name }, `${name} `, el("b", {}, value))),
      );
    const isNow = run.lane[event] === lane ? "peer now" : "peer";
    if (all.className !== isNow) all.className = isNow;
    const { end } = log;
    const elsewhere = to >= from && end < from ? (end ? `its log ends at ${end}` : "its log is empty") : "";
    if (to >= from && !elsewhere) refill(boxes, this.#boxes(log, from, to, commit.value));
    refill(all, [
      [JSON.stringify(["head", up, role, isNew, since, states, facts]), head],
      elsewhere ? [elsewhere, () => el("div", { class: "log quiet" }, elsewhere)] : to >= from ? ["log", () => boxes] : null,
      role === 2 && up ? this.#indexes(lane, event) : null,
    ]);
  }

  // Something that is so because of an event, to which a click on it leads.
  #origin(event, given, ...children) {
    if (event < 0) return el("span", given, ...children);
    return el("button", { ...given, title: "go to the event that set this value", onclick: () => this.go(event) }, ...children);
  }

  #boxes(log, from, to, commit) {
    const { run } = this;
    const boxes = [];
    for (let index = from; index <= to; index++) {
      if (index <= log.base) {
        const term = index === log.base ? `t${log.baseTerm}` : "";
        boxes.push([`${index} snap ${log.base} ${term}`, () => el("span", { class: "box gone", title: `in the snapshot to ${log.base}` }, el("i", {}, term), "snap")]);
        continue;
      }
      const number = log.entry(index);
      if (number === undefined) boxes.push([`${index} none`, () => el("span", { class: "box none" })]);
      else if (number < 0) boxes.push([`${index} ?`, () => el("span", { class: "box unknown", title: "an entry that no message has contained" }, "?")]);
      else {
        const isNew = log.changed !== null && index > log.changed;
        boxes.push([`${index} ${number} ${index <= commit} ${isNew}`, () => this.#box(index, number, index <= commit, isNew)]);
      }
    }
    return boxes;
  }

  #toEntry(lane, box) {
    const place = box ? this.run.logs[lane].cameAt(this.event, Number(box.dataset.index)) : -1;
    if (place >= 0) this.go(place);
  }

  #box(index, number, committed, isNew) {
    const { run } = this;
    const term = run.entries.term[number];
    const text = run.text(run.entries.text[number]);
    const box = el("span", { class: `box${committed ? " committed" : ""}${isNew ? " new" : ""}`, title: `entry ${index}, term ${term}: ${text}${committed ? ", known to be committed" : ""}`, "data-index": index }, el("i", {}, `t${term}`), text);
    box.style.setProperty("--hue", (term * 67) % 360);
    return box;
  }

  #indexes(lane, event) {
    const { run } = this;
    const known = [...run.indexes(lane, event)].map(([follower, { next, match, changed, since }]) => [run.lanes[follower].name, `${next}/${match}`, changed, since]);
    if (!known.length) return null;
    const one = ([name, told, changed, since]) => this.#origin(since, { class: changed ? "fact new" : "fact" }, `${name}: `, el("b", {}, told));
    return [JSON.stringify(["indexes", known]), () => el("div", { class: "facts indexes" }, el("span", { class: "quiet" }, "next/match"), known.map(one))];
  }

  // What the peer itself holds, where the page was made with --fields.
  #fields(event) {
    const { run } = this;
    const lane = this.fieldsOf ?? run.lane[event];
    const of = lane >= 0 ? run.fields[lane] : null;
    if (!of || !(run.field(lane, "condition", event).value & UP)) return null;
    if (!this.own.has(lane)) {
      const own = { table: el("table", {}), line: el("div", {}) };
      own.all = el("details", { open: true, class: "own" }, el("summary", {}, `${run.name(lane)}'s own fields`), own.line, own.table);
      this.own.set(lane, own);
    }
    const own = this.own.get(lane);
    const rows = [];
    for (const [name, history] of Object.entries(run.fieldLists[lane])) {
      const { end, changed, entry, since } = history.at(event, run.newFrom(event));
      const first = Math.max(0, Math.min(end - 12, changed ?? Infinity));
      const items = Array.from({ length: Math.min(16, end - first) }, (_, i) => [run.text(entry(first + i + 1)), changed !== null && first + i >= changed]);
      const shown = () => items.map(([text, isNew]) => el("span", { class: isNew ? "entry new" : "entry" }, text));
      rows.push([JSON.stringify(["list", name, first, end, changed !== null, since, items]), () => el("tr", { class: changed !== null ? "new" : "" }, el("th", {}, this.#origin(since, { class: "fact" }, name)), el("td", {}, first ? `… ${first} before ` : "", shown(), first + 16 < end ? ` … ${end} in all` : "", end ? "" : "empty"))]);
    }
    for (const [name, changes] of Object.entries(of.values)) {
      const known = this.#fieldAt(changes, event);
      if (known) rows.push([JSON.stringify(["value", name, known]), () => el("tr", { class: known.changed ? "new" : "" }, el("th", {}, this.#origin(known.since, { class: "fact" }, name)), el("td", {}, known.text))]);
    }
    refill(own.table, rows);
    const line = this.#fieldAt(of.lines, event);
    refill(own.line, [line?.changed ? [line.text, () => el("p", { class: "quiet" }, `at ${line.text}`)] : null]);
    return [`own ${lane}`, () => own.all];
  }

  #fieldAt(flat, event) {
    const row = lastBefore(flat, event);
    return row < 0 ? null : { text: this.run.text(flat[2 * row + 1]), changed: flat[2 * row] >= this.run.newFrom(event), since: flat[2 * row] };
  }

  // ---- one message -----------------------------------------------------------------------------------------------

  #showDetails(event) {
    const { run } = this;
    const call = run.call[event];
    const own = run.kind(event) === "send" || run.kind(event) === "persist" ? "the peer's own timer (no message arrived at this instant)" : "";
    refill(byId("details"), [
      call >= 0 ? [`message ${call} ${event}`, () => this.#message(call, event)] : null,
      run.operationAt.has(event) ? [`operation ${event}`, () => this.#operation(event)] : null,
      this.#chain("Causes", run.causesOf(event), own),
      this.#chain("Effects", run.effectsOf(event), ""),
    ]);
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
      el("h2", {}, `${run.text(c.kind[call])} #${c.id[call]}  ${run.name(c.from[call])} → ${run.name(c.to[call])}${original >= 0 ? " (duplicate of a request)" : ""}`),
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
    const [lane, from, to, text, accused] = run.operations[run.operationAt.get(event)];
    return el("div", { class: "message" }, el("h2", {}, `${run.name(lane)}: ${run.text(text)}`), accused ? el("p", { class: "accused" }, "No linearizable order contains this operation.") : null, el("div", { class: "fate" }, el("button", { class: "step", onclick: () => this.go(from) }, `called ${seconds(run.time[from])}`), to >= 0 ? el("button", { class: "step", onclick: () => this.go(to) }, `returned ${seconds(run.time[to])} (+${span(run.time[to] - run.time[from])})`) : el("span", { class: "quiet" }, "never returned")));
  }

  #chain(title, events, none) {
    const { run } = this;
    if (!events.length) return none ? [`${title} ${none}`, () => el("div", { class: "chain" }, el("h2", {}, title), el("p", { class: "quiet" }, none))] : null;
    if (!this.chains.has(title)) {
      const [list, more] = [el("ol", {}), el("div", {})];
      this.chains.set(title, { list, more, all: el("div", { class: "chain" }, el("h2", {}, title), list, more) });
    }
    const { list, more, all } = this.chains.get(title);
    const shown = this.all ? events : events.slice(0, MOST_LINKS);
    refill(list, shown.map((place) => [place, () => el("li", {}, el("button", { onclick: () => this.go(place) }, el("span", { class: "quiet" }, `${seconds(run.time[place], 4)} `), this.sentence(place)))]));
    refill(more, [shown.length < events.length ? [events.length, () => el("button", { onclick: () => ((this.all = true), this.go(null)) }, `all ${events.length}`)] : null]);
    return [title, () => all];
  }
}

const votesTold = (from, peers) => `${from.length} of ${peers}, from ${from.join(" ")}`;
