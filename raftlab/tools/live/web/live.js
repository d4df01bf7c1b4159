// The live page: the page of a run, and beside it what can be done next. The server makes every step; the page shows what
// came of it. A step that is made while an earlier moment is shown begins a new branch.

import { Run } from "./data.js";
import { byId, el, fill } from "./dom.js";
import { Lanes } from "./lanes.js";
import { Layout } from "./layout.js";
import { Page } from "./page.js";

const FROZEN = 8; // of a condition: all clocks of a live run are frozen, so it is not shown

const LIVE_KEYS = [
  ["0 … 9 *", "choose a peer; all"],
  ["v", "campaign: run the peer's clock until it asks for votes"],
  ["h", "heartbeat: run the leader's clock until it sends AppendEntries"],
  ["s", "start a command"],
  ["r R", "run 100 ms, 1 s: the chosen peer alone, or all with messages that arrive"],
  ["w", "run all clocks until a peer sends"],
  ["q Q", "crash, restart"],
  ["a", "pause or resume"],
  ["i", "cut off the peer, or heal its links"],
  ["o", "snapshot"],
  ["m M", "choose the next, previous message in flight"],
  ["g l y", "deliver, lose, duplicate the chosen message"],
  ["D L H", "deliver all, lose all, heal all"],
  ["K", "in the run of a test: take it over after the chosen event"],
  ["u U", "back, forward by a step; what you do there begins a branch"],
  [":", "type a step"],
  ["b", "branches: switch, name, compare, delete"],
  ["O", "another run from nothing"],
  ["T", "the same steps on changed code"],
  ["G", "the next step of the example that was begun"],
  ["S", "save: scenario, page"],
];

// What each key asks for: the first step of the chosen peer, or else of all, that fits and can be made.
const ACTION_KEYS = [
  ["v", /^campaign /],
  ["h", /^heartbeat /],
  ["s", /^start /],
  ["r", /^run (\d )?100ms$/],
  ["R", /^run 1s$/],
  ["w", /^run until/],
  ["q", /^crash \d$/],
  ["Q", /^restart /],
  ["a", /^(pause|resume) /],
  ["i", /^(cut|heal) \d$/],
  ["o", /^snapshot /],
  ["D", /^deliver$/],
  ["L", /^drop$/],
  ["H", /^heal$/],
];
const MESSAGE_KEYS = ["g", "l", "y"]; // in the order of a message's actions

const EXAMPLES = [
  ["An election", "peers 3", ["campaign 0", "deliver 0->1 vote", "deliver 1->0 vote reply", "heartbeat 0"]],
  ["A command is committed", "peers 3", ["elect 0 with 1 2", "start 0 x", "deliver"]],
  ["Split vote", "peers 3", ["campaign 0", "campaign 1", "campaign 2", "deliver", "elect 1 with 0 2"]],
  ["Stale leader", "peers 3", ["elect 0 with 1 2", "pause 0", "elect 1 with 2", "start 1 x", "replicate 1->2", "resume 0", "start 0 y", "deliver 0->2 append", "deliver 2->0 append reply"]],
  ["Figure 8", "peers 5\nlogs 0: 1\nlogs 1: 1\nlogs 2: 1\nlogs 3: 1\nlogs 4: 1\ncommit 1", ["elect 0 with 1 2 3 4", "start 0 x", "replicate 0->1", "crash 0", "elect 4 with 2 3", "start 4 y", "crash 4", "restart 0", "elect 0 term 4 with 1 2 3", "replicate 0->2", "crash 0", "restart 4", "elect 4 term 5 with 1 2 3", "replicate 4->1 2 3"]],
  ["Figure 7", "peers 7\nlogs 0: 1 1 1 4 4 5 5 6 6 6\nlogs 1: 1 1 1 4 4 5 5 6 6\nlogs 2: 1 1 1 4\nlogs 3: 1 1 1 4 4 5 5 6 6 6 6\nlogs 4: 1 1 1 4 4 5 5 6 6 6 7 7\nlogs 5: 1 1 1 4 4 4 4\nlogs 6: 1 1 1 2 2 2 3 3 3 3 3\ncommit 9", ["campaign 0", "deliver 0->* vote", "deliver *->0 vote reply", "start 0 x", "replicate 0->*"]],
];

async function ask(path, body = {}) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return answer.json();
}

function runOf(data) {
  for (const state of data.states) {
    const flat = state?.condition ?? [];
    const kept = [];
    for (let i = 0; i < flat.length; i += 2) {
      const condition = flat[i + 1] & ~FROZEN;
      if (condition !== kept.at(-1)) kept.push(flat[i], condition);
    }
    if (state?.condition) state.condition = kept;
  }
  return new Run(data);
}

class LivePage extends Page {
  constructor(run) {
    super(run);
    this.state = null; // of the branch: its moments, its name
    this.tree = [];
    this.at = 0; // how many steps had been made by the moment that is shown
    this.subject = -1; // a peer, or -1: all
    this.message = 0; // the chosen one of those in flight
    this.other = null; // the branch that is shown beside this one
    this.example = null; // the one that was begun: its title and steps
    this.busy = false;
    this.command = 0; // how many commands were suggested
  }

  begin({ rest }) {
    this.start();
    this.#listenLive();
    this.#helpLive();
    this.#accept(rest);
    this.toMoment(this.last);
    this.#watch();
  }

  // ---- what the server says ---------------------------------------------------------------------------------------

  get moments() {
    return this.state.moments;
  }

  get last() {
    return this.moments.length - 1;
  }

  get moment() {
    return this.moments[this.at];
  }

  // The peers of this run, whatever lanes there are.
  get count() {
    return this.moment.actions.peers.length;
  }

  // Whether the chosen event is of the test's own run, before anybody took it over.
  get inTest() {
    return this.state.ofTest && (!this.state.stepped || this.current < this.moments[0].events - 1);
  }

  take({ data, rest }) {
    if (rest.tree) this.tree = rest.tree;
    if (rest.error) return this.tell(rest.error, true);
    if (rest.refused) return this.tell(rest.refused, true);
    if (!data) return this.#showLive();
    this.replace(runOf(data));
    this.#accept(rest);
    this.tell(this.state.note || this.#whatCame(), Boolean(this.state.note));
    this.toMoment(this.last);
    this.#showExample();
    if (rest.beside) this.compare(rest.beside);
    else if (this.other) this.compare(null);
  }

  #accept(rest) {
    this.tree = rest.tree;
    const known = rest.known ? this.moments.slice(0, rest.known) : [];
    this.state = { branch: rest.branch, moments: [...known, ...rest.moments], note: rest.note, stepped: rest.stepped, ofTest: rest.of_test, race: rest.race ? " --race" : "" };
    this.run.newFrom = (event) => {
      const step = this.stepOf(event);
      return step > 0 && event === this.endOf(step) ? this.moments[step - 1].events : event;
    };
    if (this.subject >= this.moments[0].actions.peers.length) this.subject = -1;
    const name = this.tree.find((one) => one.id === rest.branch)?.name ?? "";
    byId("title").textContent = name;
    document.title = `${name} · live`;
  }

  #whatCame() {
    const shown = this.moments[this.last].shown;
    const { run } = this.run;
    if (run.failed) return "the run has failed; the panel says why";
    if (!this.state.stepped) return "the test has passed";
    return shown || this.moments[this.last].step || (this.state.ofTest ? "taken over: the test has ended, all clocks stand still" : "");
  }

  tell(text, refused = false) {
    const status = byId("status");
    status.textContent = text;
    status.className = refused ? "refused" : text.includes("\n") ? "shown" : "";
  }

  async act(step) {
    if (this.busy) return;
    if (this.inTest) return this.tell("here the test acts; take the run over first (K)", true);
    await this.#asking("act", { branch: this.state.branch, at: this.at, step });
  }

  takeOver() {
    if (!this.inTest) return this.tell("only the run of a test can be taken over", true);
    return this.#asking("take-over", { branch: this.state.branch, event: this.current });
  }

  whatIf(what) {
    return this.#asking("what-if", { branch: this.state.branch, event: this.current, what });
  }

  async #asking(path, body) {
    this.busy = true;
    document.body.classList.add("busy");
    try {
      this.take(await ask(path, body));
    } catch (error) {
      this.tell(String(error.message ?? error), true);
    } finally {
      this.busy = false;
      document.body.classList.remove("busy");
      performance.mark("stepped");
    }
  }

  // ---- moments ----------------------------------------------------------------------------------------------------

  // The step that an event belongs to, or 0: the beginning.
  stepOf(event) {
    let step = this.moments.findIndex((moment) => event < moment.events);
    return step < 0 ? this.last : step;
  }

  // The event that is shown for a step: its last that has a line.
  endOf(step) {
    const end = Math.min(this.moments[step].events, this.run.count);
    const begin = step ? this.moments[step - 1].events : 0;
    const shown = this.lanes.layout.step(end, -1);
    return shown >= begin ? shown : end - 1;
  }

  toMoment(step) {
    if (step < 0 || step > this.last) return;
    this.go(this.run.run.failed && step === this.last ? Math.max(this.run.failAt, 0) : this.endOf(step));
    this.#setMoment(step);
  }

  go(event, how) {
    super.go(event, how);
    if (!this.state) return;
    const queued = this.run.call[event];
    this.#setMoment(this.stepOf(event));
    if (this.inTest) return;
    const id = queued >= 0 ? this.run.calls.id[queued] : -1;
    const place = this.moment.actions.messages.findIndex((one) => one.id === id);
    if (place >= 0) {
      this.message = place;
      this.#showMessages();
    }
  }

  #setMoment(step) {
    if (step !== this.at) this.message = 0;
    this.at = step;
    this.#showLive();
  }

  // ---- what is shown ----------------------------------------------------------------------------------------------

  #showLive() {
    if (this.inTest) this.#showChanges();
    else {
      this.#showSubjects();
      this.#showActions();
      this.#showMessages();
    }
    this.#showSteps();
    const here = this.tree.find((one) => one.id === this.state.branch);
    const outcome = byId("outcome");
    outcome.textContent = here?.rule ? `violates ${here.rule}` : here?.ended ? "failed" : !this.state.stepped ? "passed" : `${this.last} steps, ${(this.run.endNs / 1e9).toFixed(3)} s`;
    outcome.className = here?.ended ? "failed" : "";
    byId("branches-button").textContent = `Branches ${this.tree.length}`;
    this.panel.fieldsOf = this.subject < 0 ? null : this.run.lanes.findIndex((lane) => lane.name === String(this.subject));
  }

  choose(subject) {
    if (subject >= this.count) return this.tell(`there is no peer ${subject}`, true);
    this.subject = subject;
    this.#showLive();
    this.panel.show(this.current);
  }

  get headTitle() {
    return !this.state || this.inTest ? super.headTitle : "choose this peer";
  }

  pressHead(lane) {
    if (this.inTest) super.pressHead(lane);
    else this.choose(Number(this.run.lanes[lane].name));
  }

  #showSubjects() {
    const one = (subject, text) => el("button", { "aria-pressed": String(this.subject === subject), onclick: () => this.choose(subject), title: subject < 0 ? "*" : `${subject}` }, text);
    fill(byId("subjects"), one(-1, "all"), el("span", { class: "quiet" }, "peer"), Array.from({ length: this.count }, (_, i) => one(i, `${i}`)));
  }

  // The actions of the chosen peer, or those of all.
  get actions() {
    const { all, peers, links } = this.moment.actions;
    return this.subject < 0 ? all : [...peers[this.subject], ...links[this.subject]];
  }

  // What can be changed in the run of a test, at the chosen event.
  #showChanges() {
    const { run } = this;
    const event = this.current;
    const about = run.call[event] >= 0;
    const isReply = ["answer", "reply"].includes(run.kind(event)) || (run.kind(event) === "drop" && run.calls.answered[run.call[event]] >= 0);
    const lane = run.lane[event];
    const change = (what, text) => el("button", { class: "action", "data-step": what, onclick: () => this.whatIf(what) }, text);
    const parts = [
      el("p", {}, `Event ${event + 1}: ${this.panel.sentence(event)}`),
      el("button", { class: "action", "data-step": "take over", onclick: () => this.takeOver() }, "take over here", el("kbd", {}, "K")),
      el("span", { class: "break" }),
      about ? el("span", { class: "quiet" }, `What if this ${isReply ? "reply" : "request"} …`) : el("span", { class: "quiet" }, "Choose a message, and you can change what becomes of it."),
      about ? [change("lost", "is lost"), change("at once", "arrives at once"), change("100 ms later", "arrives 100 ms later"), isReply ? null : change("twice", "arrives twice")] : [],
      lane >= 0 && run.lanes[lane].peer ? [el("span", { class: "break" }), change(`crash ${run.lanes[lane].name}`, `${run.name(lane)} crashes here, and restarts`)] : [],
    ];
    fill(byId("subjects"), el("b", {}, "The run of a test"));
    fill(byId("actions"), parts.flat());
    byId("flight-title").textContent = "What if";
    fill(byId("messages"), el("li", {}, "Go to any moment of the run. Change one thing there: the run is made again, with all other choices as they were, and shown beside this one. Or take the run over: up to there it is the same, and then you choose every step."));
  }

  #showActions() {
    const keys = new Map();
    for (const [key, pattern] of ACTION_KEYS) {
      const fits = this.actions.filter(({ step }) => pattern.test(step));
      const first = fits.find((action) => !action.why_not) ?? fits[0];
      if (first) keys.set(first.step, key);
    }
    const { peers } = this.moment.actions;
    const buttons = this.actions.map((action, i) => [this.subject >= 0 && i === peers[this.subject].length ? el("span", { class: "break" }) : null, this.#action(action, keys.get(action.step))]);
    fill(byId("actions"), buttons.flat());
  }

  #action(action, key, text = action.step) {
    const why = action.why_not;
    return el(
      "button",
      { class: "action", "aria-disabled": why ? "true" : null, title: why ? `not now: ${why}` : key ? `key ${key}` : action.step, "data-step": action.step, onclick: () => this.press(action) },
      text.endsWith(" ") ? `${text.trim()} …` : text,
      key ? el("kbd", {}, key) : null,
    );
  }

  // An action that is chosen: it is made, or asks for a word more, or says why not.
  press(action) {
    if (action.why_not) return this.tell(`${action.step.trim()}: ${action.why_not}`, true);
    if (!action.step.endsWith(" ")) return this.act(action.step);
    const input = byId("step");
    const command = action.step.startsWith("start ") ? `x${++this.command}` : "";
    input.value = action.step + command;
    input.focus();
    input.setSelectionRange(action.step.length, input.value.length);
    this.tell(action.step.startsWith("partition") ? "write the sides, for example: partition 0 1 | 2" : action.step.startsWith("snapshot") ? "write the index, then Enter" : "write the command, then Enter");
  }

  #showMessages() {
    const { messages } = this.moment.actions;
    this.message = Math.max(0, Math.min(this.message, messages.length - 1));
    byId("flight-title").textContent = messages.length ? `In flight: ${messages.length}` : "Nothing is in flight";
    const rows = messages.map((one, i) => {
      const chosen = i === this.message;
      const keys = chosen ? MESSAGE_KEYS : [];
      return el(
        "li",
        { class: chosen ? "flying chosen" : "flying" },
        el("button", { "aria-current": chosen ? "true" : null, onclick: () => this.chooseMessage(i) }, one.text),
        one.actions.map((action, k) => this.#action(action, keys[k], ["deliver", "lose", "twice"][k])),
      );
    });
    fill(byId("messages"), rows);
    rows[this.message]?.scrollIntoView({ block: "nearest" });
  }

  chooseMessage(place) {
    const { messages } = this.moment.actions;
    if (!messages.length) return this.tell("nothing is in flight", true);
    this.message = (place + messages.length) % messages.length;
    this.#showMessages();
  }

  #showSteps() {
    const here = this.tree.find((one) => one.id === this.state.branch);
    const rows = this.moments.map((moment, i) =>
      el("li", {}, el("button", { class: `${i > this.at ? "later" : ""}${here?.ended && i === this.last ? " violated" : ""}`, "aria-current": i === this.at ? "step" : null, onclick: () => this.toMoment(i) }, i ? `${i} ${moment.step}` : !this.state.ofTest ? "0 the beginning" : this.state.stepped ? "0 the test, until it was taken over" : "the whole run of the test")),
    );
    fill(byId("steps-made"), rows);
    byId("made-title").textContent = this.at < this.last ? `Step ${this.at} of ${this.last}: go on here as a branch` : `Steps of ${here?.name ?? ""}`;
    rows[this.at]?.scrollIntoView({ block: "nearest" });
  }

  // ---- branches ---------------------------------------------------------------------------------------------------

  async switchTo(branch) {
    byId("branches").close();
    await this.#asking("look", { branch });
  }

  branches() {
    const children = (parent) => this.tree.filter((one) => one.parent === parent);
    const known = new Set(this.tree.map((one) => one.id));
    const roots = this.tree.filter((one) => !known.has(one.parent));
    const item = (one) => {
      const here = one.id === this.state.branch;
      const name = el("input", { type: "text", value: one.name, "aria-label": "name of the branch", onchange: (e) => this.#tree("rename", { branch: one.id, name: e.target.value }) });
      const told = `${one.steps} steps${one.parent !== null && known.has(one.parent) ? `, from step ${one.at}` : ""}${one.rule ? `, violates ${one.rule}` : one.ended ? ", failed" : ""}`;
      return el(
        "li",
        {},
        el("div", { class: here ? "here" : "" }, el("button", { onclick: () => this.switchTo(one.id), disabled: here }, here ? "here" : "go there"), name, el("span", { class: "quiet" }, told), here ? null : el("button", { onclick: () => (byId("branches").close(), this.compare(one.id)) }, "beside"), here ? null : el("button", { onclick: () => this.#tree("delete", { branch: one.id }) }, "delete")),
        children(one.id).length ? el("ul", {}, children(one.id).map(item)) : null,
      );
    };
    fill(byId("branches"), el("h2", {}, "Branches"), el("ul", {}, roots.map(item)), el("button", { autofocus: true, onclick: () => byId("branches").close() }, "Close"));
    if (!byId("branches").open) byId("branches").showModal();
  }

  async #tree(path, body) {
    try {
      const { rest } = await ask(path, body);
      this.tree = rest.tree;
      if (rest.error) this.tell(rest.error, true);
      if (this.other?.id === body.branch && path === "delete") this.compare(null);
    } catch (error) {
      this.tell(String(error.message), true);
    }
    byId("title").textContent = this.tree.find((one) => one.id === this.state.branch)?.name ?? "";
    this.#showLive();
    this.branches();
  }

  // Another branch beside this one, with the first difference marked; null: none.
  async compare(id) {
    const canvas = byId("beside");
    canvas.hidden = id === null;
    this.other = null;
    if (id === null) {
      this.#banner(null);
      return this.resize();
    }
    const { data, rest } = await ask("beside", { branch: this.state.branch, other: id });
    const run = runOf(data);
    const lanes = new Lanes(canvas, run);
    lanes.layout = new Layout(run, { lanes: null, topics: null, network: true, term: null, kind: null, matches: null }, this.folded, new Set());
    this.other = { id, lanes, differs: rest.differs };
    this.theme();
    this.resize();
    const close = el("button", { onclick: () => this.compare(null) }, "close (B)");
    if (rest.differs === null) return this.#banner([`${rest.name}, right, is the same run.`, close]);
    const theirs = Math.min(rest.differs, run.count - 1);
    const ours = Math.min(rest.differs, this.run.count - 1);
    lanes.current = theirs;
    const step = this.stepOf(ours);
    this.#banner([`Right: ${rest.name}. The first difference is event ${rest.differs + 1}${step ? `, in step ${step}, ${this.moments[step].step}` : ""}.`, el("button", { onclick: () => this.toDifference() }, "to the difference"), close]);
    this.toDifference();
  }

  toDifference() {
    if (!this.other || this.other.differs === null) return;
    this.go(Math.min(this.other.differs, this.run.count - 1));
    const { lanes } = this.other;
    lanes.top = lanes.y(lanes.current) - (this.lanes.y(this.current) - this.lanes.top);
    this.draw();
  }

  // ---- drawing ----------------------------------------------------------------------------------------------------

  drawNow() {
    super.drawNow();
    if (!this.other) return;
    this.other.lanes.clamp();
    this.other.lanes.draw();
  }

  resize() {
    super.resize();
    this.other?.lanes.resize();
  }

  theme(wanted) {
    super.theme(wanted);
    if (this.other) this.other.lanes.colours = this.lanes.colours;
  }

  #banner(parts) {
    byId("banner").hidden = !parts;
    fill(byId("banner"), ...(parts ?? []));
    if (this.state) this.resize();
  }

  // What an example does next, as long as its steps were made and no others.
  get following() {
    const [, , steps] = this.example ?? [];
    return steps && this.moments.slice(1).every(({ step }, i) => step === steps[i]) ? steps[this.last] : undefined;
  }

  #showExample() {
    if (!this.example) return;
    const [title, , steps] = this.example;
    const next = this.following;
    if (next) this.#banner([`${title}, step ${this.last + 1} of ${steps.length}:`, el("button", { onclick: () => this.act(next) }, `${next} (G)`)]);
    else {
      this.#banner(null);
      this.example = null;
    }
  }

  // ---- dialogs ----------------------------------------------------------------------------------------------------

  newRun(header = "peers 3", example = null) {
    const text = el("textarea", { rows: 9, "aria-label": "how the run begins" });
    text.value = header;
    const make = async () => {
      byId("new").close();
      this.example = example;
      await this.#asking("new", { branch: this.state.branch, header: `snapshots\n${text.value.trim()}`, name: example?.[0] ?? "" });
    };
    const preset = (one) => el("button", { onclick: () => ((text.value = one[1]), (example = one)) }, one[0]);
    fill(
      byId("new"),
      el("h2", {}, "Another run, from nothing"),
      el("p", {}, "How it begins, as at the top of a scenario: the number of peers and, if they are not empty, the logs."),
      el("p", {}, EXAMPLES.slice(2).map(preset)),
      text,
      el("button", { onclick: make }, "Begin"),
      " ",
      el("button", { onclick: () => byId("new").close() }, "Cancel"),
    );
    byId("new").showModal();
    text.focus();
  }

  save() {
    const link = (path, text) => el("p", {}, el("a", { href: `${path}?branch=${this.state.branch}`, download: "" }, text));
    const verdict = el("p", { class: "quiet" }, "Playing it out as the command line does …");
    const file = this.state.ofTest ? link("choices", `as choices: lab replay FILE${this.state.race} makes the same run`) : link("scenario", `as a scenario: lab scenario FILE${this.state.race} makes the same steps`);
    fill(byId("export"), el("h2", {}, "Save this branch"), file, link("page", "as one HTML page, as make page writes it"), verdict, el("button", { autofocus: true, onclick: () => byId("export").close() }, "Close"));
    byId("export").showModal();
    ask("finished", { branch: this.state.branch }).then(({ rest }) => {
      verdict.textContent = rest.error ?? `On the command line ${this.state.ofTest ? "the run" : "the scenario"} ${rest.failed ? `fails: ${rest.finished}` : "passes"}.`;
    });
  }

  #helpLive() {
    const rows = (keys) => el("table", {}, keys.map(([key, does]) => el("tr", {}, el("th", {}, key), el("td", {}, does))));
    const known = [...byId("help").children];
    // Digits choose a peer here.
    known.flatMap((part) => [...part.querySelectorAll("tr")]).find((row) => row.textContent.startsWith("0 …"))?.remove();
    const example = (one) => el("li", { class: "recipe" }, el("button", { onclick: () => (byId("help").close(), this.newRun(one[1], one)) }, one[0]), el("code", {}, ` ${one[2].join("; ")}`));
    fill(
      byId("help"),
      el("h2", {}, "You choose what happens next"),
      el("p", {}, "All clocks stand still and every message waits, until you say otherwise. Choose a peer, or all, and press an action; deliver, lose or duplicate messages in flight. After each step all rules are checked. What cannot be done now is dashed and says why. Go back to an earlier step and do something else: that begins a branch."),
      el("h2", {}, "To try"),
      el("p", { class: "quiet" }, "Press a title and begin; then G makes the next step. Or make other ones."),
      el("ol", {}, EXAMPLES.map(example)),
      el("h2", {}, "Keys"),
      rows(LIVE_KEYS),
      el("h2", {}, "Keys to look around"),
      ...known.slice(1),
    );
  }

  help() {
    super.help();
    byId("help").scrollTop = 0;
  }

  // ---- keys -------------------------------------------------------------------------------------------------------

  #listenLive() {
    const on = (id, act) => byId(id).addEventListener("click", act);
    on("new-button", () => this.newRun());
    on("branches-button", () => this.branches());
    on("export-button", () => this.save());
    byId("say").addEventListener("submit", (e) => {
      e.preventDefault();
      const input = byId("step");
      const step = input.value.trim();
      if (!step) return;
      input.value = "";
      input.blur();
      this.act(step);
    });
    // Before the page itself sees them.
    window.addEventListener("keydown", (e) => this.#liveKey(e), { capture: true });
  }

  #liveKey(e) {
    if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
    if (e.target.id === "step") {
      if (e.key === "Escape") e.target.blur();
      e.stopPropagation();
      return;
    }
    if (e.target.matches("input, select, textarea")) return;
    let act = this.#keyed(e.key);
    if (this.inTest && act && !"bBOSTKUu:".includes(e.key)) {
      if (/^\d$/.test(e.key)) return; // the page's own: only that peer
      act = () => this.tell("here the test acts; take the run over first (K)", true);
    }
    if (!act) return;
    e.preventDefault();
    e.stopPropagation();
    act();
  }

  #keyed(key) {
    if (/^\d$/.test(key)) return () => this.choose(Number(key));
    const place = MESSAGE_KEYS.indexOf(key);
    if (place >= 0) {
      const one = this.moment.actions.messages[this.message];
      return () => (one ? this.press(one.actions[place]) : this.tell("nothing is in flight", true));
    }
    const [, pattern] = ACTION_KEYS.find(([known]) => known === key) ?? [];
    if (pattern) {
      const { all } = this.moment.actions;
      const fits = [...this.actions, ...(this.subject < 0 ? [] : all)].filter(({ step }) => pattern.test(step));
      const action = fits.find((one) => !one.why_not) ?? fits[0];
      return () => (action ? this.press(action) : this.tell("choose a peer first: 0, 1, 2 …", true));
    }
    return {
      "*": () => this.choose(-1),
      m: () => this.chooseMessage(this.message + 1),
      M: () => this.chooseMessage(this.message - 1),
      u: () => this.toMoment(this.at - 1),
      Backspace: () => this.toMoment(this.at - 1),
      U: () => this.toMoment(this.at + 1),
      ":": () => byId("step").focus(),
      b: () => this.branches(),
      B: () => this.compare(null),
      O: () => this.newRun(),
      S: () => this.save(),
      G: () => (this.example && this.following ? this.act(this.following) : this.tell("no example has been begun; Help has some", true)),
      T: () => this.retry(),
      K: () => this.takeOver(),
    }[key];
  }

  // ---- the code on the disk, and the server ------------------------------------------------------------------------

  async retry() {
    this.#banner(null);
    await this.#asking("retry", { branch: this.state.branch });
  }

  #watch() {
    const events = new EventSource("events");
    events.addEventListener("changed", (e) => {
      this.#banner([`${JSON.parse(e.data).join(", ")} changed.`, el("button", { onclick: () => this.retry() }, "same steps on the new code (T)"), el("button", { onclick: () => this.#banner(null) }, "not now")]);
    });
    events.onopen = () => {
      if (this.gone) this.#banner(null);
      this.gone = false;
    };
    events.onerror = () => {
      this.gone = true;
      this.#banner(["The server does not answer. If it has ended, start it again: make live"]);
    };
  }
}

const firstAnswer = await ask("look");
const livePage = new LivePage(runOf(firstAnswer.data));
livePage.begin(firstAnswer);
byId("loading").remove();
document.documentElement.dataset.ready = "yes";
