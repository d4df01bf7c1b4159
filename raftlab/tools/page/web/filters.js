// What is shown: by peer, topic, term, kind and text.

import { byId, el, fill } from "./dom.js";

export class Filters {
  constructor(run, changed) {
    this.run = run;
    this.changed = changed;
    this.lanes = fewClients(run);
    this.topics = new Set(run.topics.keys());
    this.network = true;
    this.term = null;
    this.kind = null;
    this.onlyMatches = false;
    this.matches = null; // a set of events
  }

  // As Layout takes it.
  get given() {
    const all = this.run;
    return {
      lanes: this.lanes.size < all.lanes.length ? this.lanes : null,
      topics: this.topics.size < all.topics.length || !this.network ? this.topics : null,
      network: this.network,
      term: this.term,
      kind: this.kind,
      matches: this.onlyMatches ? this.matches : null,
    };
  }

  get active() {
    const given = this.given;
    return Boolean(given.lanes || given.topics || given.term != null || given.kind != null || given.matches);
  }

  find(text) {
    const { run } = this;
    const wanted = text.trim().toLowerCase();
    if (!wanted) {
      this.matches = null;
      return [];
    }
    const number = /^#(\d+)$/.exec(wanted);
    const hit = number ? null : run.texts.map((one) => one.toLowerCase().includes(wanted));
    const found = [];
    for (let i = 0; i < run.count; i++) {
      const call = run.call[i];
      const matched = number ? call >= 0 && run.calls.id[call] === Number(number[1]) : hit[run.words[i]] || (run.becameAt.get(i) ?? []).some(([, one]) => hit[one]);
      if (matched) found.push(i);
    }
    this.matches = new Set(found);
    return found;
  }

  toggleLane(lane, alone) {
    const all = this.run.lanes.length;
    if (alone) this.lanes = new Set(this.lanes.size === 1 && this.lanes.has(lane) ? this.run.lanes.keys() : [lane]);
    else if (this.lanes.has(lane)) this.lanes.delete(lane);
    else this.lanes.add(lane);
    if (!this.lanes.size) this.lanes = new Set(Array(all).keys());
    this.changed();
  }

  reset({ quiet = false } = {}) {
    this.lanes = new Set(this.run.lanes.keys());
    this.topics = new Set(this.run.topics.keys());
    this.network = true;
    this.term = this.kind = null;
    this.onlyMatches = false;
    if (!quiet) this.changed();
  }

  show() {
    const { run } = this;
    const check = (word, on, change) => el("label", { class: "check" }, el("input", { type: "checkbox", checked: on, onchange: change }), word);
    const terms = [...new Set(run.calls.term)].filter((term) => term > 0).sort((a, b) => a - b);
    const choice = (word, values, now, change) =>
      el("label", { class: "check" }, `${word} `, el("select", { onchange: change, "aria-label": word }, el("option", { value: "" }, "any"), values.map(([value, name]) => el("option", { value, selected: value === now }, name))));
    const pick = (name) => (e) => {
      this[name] = e.target.value === "" ? null : Number(e.target.value);
      this.changed();
    };
    fill(
      byId("filters"),
      el("fieldset", {}, el("legend", {}, "Messages of"), run.lanes.map((one, lane) => check(one.name, this.lanes.has(lane), () => this.toggleLane(lane, false)))),
      el(
        "fieldset",
        {},
        el("legend", {}, "Topics"),
        run.topics.map((topic, i) =>
          topic === "tester" ? null : check(topic, this.topics.has(i), () => {
            if (this.topics.has(i)) this.topics.delete(i);
            else this.topics.add(i);
            this.changed();
          }),
        ),
        check("lost and duplicated", this.network, () => {
          this.network = !this.network;
          this.changed();
        }),
      ),
      el("fieldset", {}, el("legend", {}, "Only"), choice("term", terms.map((term) => [term, term]), this.term, pick("term")), choice("kind", run.kinds.map((kind, i) => [i, kind]), this.kind, pick("kind")), check("search matches", this.onlyMatches, () => {
        this.onlyMatches = !this.onlyMatches;
        this.changed();
      })),
      el("button", { onclick: () => this.reset() }, "Show all"),
    );
  }
}

const MOST_CLIENTS = 4;

// Every peer, and not more clients than there is room for: those that are accused, or else the first ones.
function fewClients(run) {
  const clients = [...run.lanes.keys()].filter((lane) => !run.lanes[lane].peer);
  if (clients.length <= MOST_CLIENTS) return new Set(run.lanes.keys());
  const accused = new Set(run.operations.filter(([, , , , is]) => is).map(([lane]) => lane));
  const some = accused.size ? clients.filter((lane) => accused.has(lane)) : clients;
  return new Set([...run.peers, ...some.slice(0, MOST_CLIENTS)]);
}
