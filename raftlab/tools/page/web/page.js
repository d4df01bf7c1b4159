// Puts the page together: what is current, what is in view, keys, clicks and links. The page that shows a saved run (main.js)
// and the live page (raftlab/tools/live/web) are made of it.

import { countUpTo, nextOf } from "./data.js";
import { byId, el, fill, refill, seconds } from "./dom.js";
import { Filters } from "./filters.js";
import { Lanes, UP } from "./lanes.js";
import { Layout, ROLES } from "./layout.js";
import { Overview } from "./overview.js";
import { Panel } from "./panel.js";

const KEYS = [
  ["↓ ↑ or j k", "next, previous event"],
  ["] [", "next, previous event of the same peer"],
  ["→ ←", "go to the effect, to the cause of the event"],
  ["e E", "next, previous election"],
  ["c C", "next, previous commit"],
  ["p P", "next, previous moment at which the logs diverge or agree again"],
  ["x X", "next, previous fault: crash, partition, ..."],
  ["! ", "go to the failure"],
  ["Home End", "first, last event"],
  ["PageUp PageDown, wheel", "scroll"],
  ["+ −", "zoom; also ctrl and wheel"],
  ["z", "switch between rows and a true time scale"],
  ["f", "collapse or expand all repetitions; Enter expands only the next one"],
  ["/", "search for a text, or #31 for a message; n N next, previous match"],
  ["t", "filter by peer, topic, term, kind"],
  ["0 … 9", "show only the messages of that peer; press again to show all"],
  [", .", "scroll the logs to earlier, later entries"],
  ["d", "switch between dark and light"],
  ["Esc", "close, clear the search, show all"],
  ["?", "help: keys and symbols"],
];

export class Page {
  constructor(run) {
    this.run = run;
    this.folded = true;
    this.open = new Set();
    this.found = [];
    this.current = 0;
    this.filters = new Filters(run, () => this.relay());
    this.lanes = new Lanes(byId("lanes"), run);
    this.overview = new Overview(byId("overview"), run);
    this.panel = new Panel(run, (event) => this.go(event ?? this.current));
    this.drawing = false;
  }

  start() {
    const { run } = this.run;
    byId("title").textContent = run.seed == null ? run.test : `${run.test}, seed ${run.seed}`;
    const ended = `${seconds(this.run.endNs, 1)} s (virtual), ${this.run.count.toLocaleString("en")} events`;
    byId("outcome").textContent = run.failed == null ? ended : run.failed ? `failed after ${ended}` : `passed, ${ended}`;
    byId("outcome").className = run.failed ? "failed" : "passed";
    this.panel.showFailure();
    this.#buttons();
    this.#listen();
    this.theme();
    this.filters.show();
    this.layOut();
    this.resize();
    if (!this.follow(location.hash)) this.go(this.run.failAt >= 0 ? this.run.failAt : this.beginning(), { quiet: true });
  }

  // Another run, or the same one gone on.
  replace(run) {
    const filtered = this.filters.active;
    for (const part of [this, this.lanes, this.overview, this.panel, this.filters]) part.run = run;
    if (!filtered) this.filters.reset({ quiet: true });
    this.lanes.lanesShown = run.lanes.map((_, lane) => lane);
    this.overview.still = null;
    this.open.clear();
    this.panel.showFailure();
    this.layOut();
    this.filters.show();
    this.resize();
  }

  // How the run begins: when everybody has been started.
  beginning() {
    let event = this.layoutFirst();
    for (let next = event; next >= 0 && this.run.time[next] === this.run.time[event]; next = this.lanes.layout.step(next, 1)) event = next;
    return event;
  }

  layoutFirst() {
    return Math.max(0, this.lanes.layout.step(-1, 1));
  }

  // ---- what is shown ---------------------------------------------------------------------------------------------

  layOut() {
    const given = this.filters.given;
    this.lanes.layout = new Layout(this.run, given, this.folded, this.open);
    // Whoever is alone needs the others to talk to.
    this.lanes.lanesShown = [...this.run.lanes.keys()].filter((lane) => !given.lanes || given.lanes.has(lane) || (given.lanes.size === 1 && this.run.lanes[lane].peer));
    this.lanes.place();
    byId("filter-button").classList.toggle("on", this.filters.active);
    byId("fold-button").setAttribute("aria-pressed", String(this.folded));
    byId("fold-button").textContent = this.folded ? "Collapsed" : "All events";
    byId("scale-button").textContent = this.lanes.rows ? "Rows" : "True time";
  }

  // After a change of what is shown: the current moment stays where it is on the screen.
  relay() {
    const off = this.lanes.y(this.current) - this.lanes.top;
    this.layOut();
    this.filters.show();
    this.lanes.top = this.lanes.y(this.current) - off;
    this.#heads();
    this.draw();
  }

  resize() {
    this.lanes.resize();
    this.overview.resize();
    this.panel.resize();
    this.#heads();
    this.draw();
  }

  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.drawNow();
    });
  }

  drawNow() {
    const { lanes } = this;
    lanes.clamp();
    lanes.draw();
    this.overview.draw(lanes.nsAt(lanes.top), lanes.nsAt(lanes.top + lanes.viewHeight), this.run.time[this.current]);
  }

  #heads() {
    const { run, lanes } = this;
    refill(
      byId("heads"),
      lanes.lanesShown.map((lane) => {
        const peer = run.lanes[lane].peer;
        const [left, width] = [lanes.left.get(lane) + 2, lanes.width.get(lane) - 6];
        const up = peer && run.field(lane, "condition", this.current).value & UP;
        const role = peer ? run.field(lane, "role", this.current).value : 0;
        const term = peer && width > 98 ? run.field(lane, "term", this.current).value : 0;
        return [`${lane} ${left} ${width} ${up} ${role} ${term}`, () => this.#head(lane, left, width, up, role, term)];
      }),
    );
  }

  get headTitle() {
    return "show only its messages; click again to show all";
  }

  pressHead(lane) {
    this.filters.toggleLane(lane, true);
  }

  #head(lane, left, width, up, role, term) {
    const { run } = this;
    const { peer, name } = run.lanes[lane];
    const accused = run.run.accused != null && run.run.accused === name;
    const badge = peer ? el("span", { class: `badge ${up ? ROLES[role] : "down"}` }, up ? "FCL"[role] : "✗") : null;
    const head = el("button", { class: `head${accused ? " accused" : ""}`, title: this.headTitle, onclick: () => this.pressHead(lane) }, badge, peer ? ` ${width < 76 ? name : run.name(lane)}` : name, term ? el("span", { class: "quiet" }, ` t${term}`) : null);
    head.style.left = `${left}px`;
    head.style.width = `${width}px`;
    return head;
  }

  // ---- going about -------------------------------------------------------------------------------------------------

  go(event, { quiet = false, keepLog = false } = {}) {
    const { run, lanes } = this;
    if (event < 0 || event >= run.count) return;
    if (event !== this.current) this.panel.all = false;
    if (!keepLog) this.panel.logFrom = null;
    this.current = lanes.current = event;
    lanes.chain = new Set([event, ...run.causesOf(event), ...run.effectsOf(event)]);
    const y = lanes.y(event) - lanes.top;
    const height = lanes.viewHeight;
    if (y < 40 || y > height - 60) lanes.top = lanes.y(event) - (y < 40 ? height * 0.3 : height * 0.6);
    if (y < -height || y > 2 * height) lanes.top = lanes.y(event) - height / 2;
    this.panel.show(event);
    this.#heads();
    this.draw();
    // Not at every step: a browser counts how often an address changes.
    clearTimeout(this.remembering);
    if (!quiet) this.remembering = setTimeout(() => this.#remember(), 150);
  }

  #remember() {
    const { run } = this;
    const lane = run.lane[this.current];
    const peer = lane >= 0 ? `&peer=${encodeURIComponent(run.lanes[lane].name)}` : "";
    const exact = run.at(run.time[this.current], lane) === this.current ? "" : `&event=${this.current + 1}`;
    const time = (run.time[this.current] / 1e9).toFixed(9).replace(/0+$/, "").replace(/\.$/, "");
    history.replaceState(null, "", `#t=${time}${peer}${exact}`);
  }

  // A link to a moment: #t=1.67&peer=1
  follow(hash) {
    const asked = new URLSearchParams(hash.replace(/^#/, ""));
    const event = Number(asked.get("event"));
    if (Number.isInteger(event) && event > 0 && event <= this.run.count) {
      this.go(event - 1, { quiet: true });
      return true;
    }
    const t = Number.parseFloat(asked.get("t"));
    if (!Number.isFinite(t)) return false;
    const lane = this.run.lanes.findIndex((one) => one.name === asked.get("peer"));
    this.go(this.run.at(Math.round(t * 1e9), lane), { quiet: true });
    return true;
  }

  step(way, lane = -1) {
    const event = this.lanes.layout.step(this.current, way, lane);
    if (event >= 0) this.go(event);
  }

  jump(kind, way) {
    const next = nextOf(this.run.jumps[kind], this.current, way);
    if (next === undefined) return;
    // What comes of it is below: so it is shown in the upper part.
    const { lanes } = this;
    const y = lanes.y(next) - lanes.top;
    if (y < 60 || y > lanes.viewHeight * 0.35) lanes.top = lanes.y(next) - lanes.viewHeight * 0.2;
    this.go(next);
  }

  toEffect() {
    const effects = this.run.effectsOf(this.current);
    if (!effects.length) return;
    // Along the message, if it goes on; else to what was sent because of it.
    const call = this.run.call[this.current];
    this.go(effects.find((event) => this.run.call[event] === call) ?? effects.find((event) => this.run.kind(event) === "send") ?? effects[0]);
  }

  toCause() {
    if (this.run.cause[this.current] >= 0) this.go(this.run.cause[this.current]);
  }

  toFound(way) {
    const next = nextOf(this.found, this.current, way) ?? this.found.at(way > 0 ? 0 : -1);
    if (next !== undefined) this.go(next);
  }

  find(text) {
    this.found = this.filters.find(text);
    this.lanes.matches = this.filters.matches;
    byId("found").textContent = text.trim() ? `${this.found.length.toLocaleString("en")} found` : "";
    if (this.filters.onlyMatches) this.relay();
    else this.draw();
  }

  zoom(factor, atY = this.lanes.viewHeight / 2) {
    const { lanes, run } = this;
    const whole = (lanes.viewHeight - 60) / Math.max(run.endNs, 1);
    if (lanes.rows) {
      // From rows to the clock: about as much is in view as before.
      const seen = lanes.nsAt(lanes.top + lanes.viewHeight) - lanes.nsAt(lanes.top);
      this.toggleScale();
      lanes.scale = Math.max(whole, Math.min(1, lanes.viewHeight / Math.max(seen, 1000)));
    }
    const current = lanes.y(this.current) - lanes.top;
    const inView = current >= 0 && current <= lanes.viewHeight;
    const anchor = inView ? current : atY;
    const ns = inView ? run.time[this.current] : lanes.nsAt(lanes.top + atY);
    lanes.scale = Math.max(whole, Math.min(1, lanes.scale * factor));
    lanes.top = lanes.yAt(ns) - anchor;
    this.draw();
  }

  toggleScale() {
    const { lanes } = this;
    const off = lanes.y(this.current) - lanes.top;
    const seen = lanes.nsAt(lanes.top + lanes.viewHeight) - lanes.nsAt(lanes.top);
    lanes.rows = !lanes.rows;
    if (!lanes.rows) lanes.scale = Math.max((lanes.viewHeight - 60) / Math.max(this.run.endNs, 1), Math.min(1, lanes.viewHeight / Math.max(seen, 1000)));
    byId("scale-button").textContent = lanes.rows ? "Rows" : "True time";
    lanes.top = lanes.y(this.current) - off;
    this.draw();
  }

  toggleFold() {
    this.folded = !this.folded;
    this.open.clear();
    this.relay();
  }

  openFold(fold) {
    this.open.add(fold);
    this.relay();
    this.go(this.run.folds[fold][0]);
  }

  scroll(by) {
    this.lanes.top += by;
    this.draw();
  }

  // ---- light and dark ---------------------------------------------------------------------------------------------

  theme(wanted) {
    const root = document.documentElement;
    if (wanted) root.dataset.theme = wanted;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    byId("theme-button").textContent = dark ? "Light" : "Dark";
    this.dark = dark;
    const style = getComputedStyle(root);
    const colours = {};
    for (const name of style.getPropertyValue("--names").trim().split(/\s+/)) {
      colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
    const family = style.getPropertyValue("--family").trim();
    colours.font = `12px ${family}`;
    colours.boldFont = `600 12px ${family}`;
    colours.smallFont = `11px ${family}`;
    colours.boldSmallFont = `700 11px ${family}`;
    this.lanes.colours = this.overview.colours = colours;
    this.overview.still = null;
    this.draw();
  }

  // ---- buttons, keys, the mouse -----------------------------------------------------------------------------------

  #buttons() {
    const button = (text, title, act) => el("button", { title, onclick: act }, text);
    fill(
      byId("steps"),
      button("↑", "previous event (↑)", () => this.step(-1)),
      button("↓", "next event (↓)", () => this.step(1)),
      button("← cause", "go to the event's cause (←)", () => this.toCause()),
      button("effect →", "go to the event's effect (→)", () => this.toEffect()),
      button("peer [", "previous event of this peer ([)", () => this.stepPeer(-1)),
      button("peer ]", "next event of this peer (])", () => this.stepPeer(1)),
      button("election", "next election (e)", () => this.jump("election", 1)),
      button("commit", "next commit (c)", () => this.jump("commit", 1)),
      button("divergence", "next moment at which the logs diverge or agree again (p)", () => this.jump("divergence", 1)),
      button("fault", "next fault (x)", () => this.jump("fault", 1)),
      this.run.failAt >= 0 ? button("failure", "go to the failure (!)", () => this.go(this.run.failAt)) : null,
    );
    const on = (id, act) => byId(id).addEventListener("click", act);
    on("filter-button", () => this.toggleFilters());
    on("fold-button", () => this.toggleFold());
    on("scale-button", () => this.toggleScale());
    on("zoom-in", () => this.zoom(2));
    on("zoom-out", () => this.zoom(0.5));
    on("theme-button", () => this.theme(this.dark ? "light" : "dark"));
    on("help-button", () => this.help());
    fill(byId("help"), el("h2", {}, "Keys"), el("table", {}, KEYS.map(([keys, does]) => el("tr", {}, el("th", {}, keys), el("td", {}, does)))), this.#legend(), el("button", { autofocus: true, onclick: () => byId("help").close() }, "Close"));
  }

  #legend() {
    const rows = [
      ["thick, L", "leader"],
      ["hatched, C", "candidate"],
      ["thin", "follower"],
      ["broken line", "disconnected"],
      ["bars beside the line", "paused"],
      ["dots, ✗", "down"],
      ["t3 left of a line", "term"],
      ["solid arrow", "request; the slope shows the delay"],
      ["dashed arrow", "reply"],
      ["dotted arrow", "duplicate of a request"],
      ["arrow that ends in ✗", "lost message"],
      ["log box, solid edge", "known to be committed"],
    ];
    return el("div", {}, el("h2", {}, "Symbols"), el("table", {}, rows.map(([sign, means]) => el("tr", {}, el("th", {}, sign), el("td", {}, means)))));
  }

  help() {
    const dialog = byId("help");
    if (dialog.open) dialog.close();
    else dialog.showModal();
  }

  toggleFilters() {
    const box = byId("filters");
    box.hidden = !box.hidden;
    byId("filter-button").setAttribute("aria-expanded", String(!box.hidden));
    this.resize();
  }

  stepPeer(way) {
    const lane = this.run.lane[this.current];
    if (lane >= 0) this.step(way, lane);
  }

  #listen() {
    window.addEventListener("resize", () => this.resize());
    window.addEventListener("hashchange", () => this.follow(location.hash));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.theme());
    window.addEventListener("keydown", (e) => this.#key(e));
    byId("find").addEventListener("input", (e) => this.find(e.target.value));
    const canvas = byId("lanes");
    canvas.addEventListener("wheel", (e) => this.#wheel(e), { passive: false });
    this.#drag(canvas);
    const strip = byId("overview");
    const jump = (e) => {
      if (!(e.buttons & 1)) return;
      const ns = this.overview.nsAt(e.offsetY);
      this.lanes.top = this.lanes.yAt(ns) - this.lanes.viewHeight / 2;
      this.draw();
    };
    strip.addEventListener("pointerdown", jump);
    strip.addEventListener("pointermove", jump);
  }

  #wheel(e) {
    e.preventDefault();
    const by = e.deltaMode ? e.deltaY * 16 : e.deltaY;
    if (e.ctrlKey || e.metaKey) this.zoom(Math.exp(-by / 300), e.offsetY);
    else this.scroll(by);
  }

  #drag(canvas) {
    let from = null;
    let moved = false;
    canvas.addEventListener("pointerdown", (e) => {
      from = e.clientY;
      moved = false;
      canvas.focus({ preventScroll: true });
      canvas.setPointerCapture(e.pointerId);
    });
    canvas.addEventListener("pointermove", (e) => {
      if (from === null) {
        canvas.style.cursor = this.lanes.hit(e.offsetX, e.offsetY) ? "pointer" : "default";
        return;
      }
      if (Math.abs(e.clientY - from) > 4 || moved) {
        moved = true;
        this.scroll(from - e.clientY);
        from = e.clientY;
      }
    });
    canvas.addEventListener("pointerup", (e) => {
      from = null;
      if (moved) return;
      const hit = this.lanes.hit(e.offsetX, e.offsetY);
      if (!hit) return;
      if (hit.fold >= 0) this.openFold(hit.fold);
      else this.go(hit.event);
    });
  }

  #key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "Escape") return this.#escape();
    if (e.target.matches("input[type=search]")) {
      if (e.key === "Enter") {
        e.preventDefault();
        this.toFound(e.shiftKey ? -1 : 1);
      }
      return;
    }
    if (e.target.matches("select, input") || byId("help").open) {
      if (e.key === "?" && byId("help").open) this.help();
      return;
    }
    const act = this.#acts()[e.key] ?? (/^\d$/.test(e.key) ? () => this.#only(e.key) : null);
    if (!act || (e.key === "Enter" && e.target.matches("button, summary"))) return;
    e.preventDefault();
    act();
  }

  #acts() {
    const page = this.lanes.viewHeight * 0.85;
    return {
      ArrowDown: () => this.step(1),
      j: () => this.step(1),
      ArrowUp: () => this.step(-1),
      k: () => this.step(-1),
      "]": () => this.stepPeer(1),
      "[": () => this.stepPeer(-1),
      ArrowRight: () => this.toEffect(),
      ArrowLeft: () => this.toCause(),
      e: () => this.jump("election", 1),
      E: () => this.jump("election", -1),
      c: () => this.jump("commit", 1),
      C: () => this.jump("commit", -1),
      p: () => this.jump("divergence", 1),
      P: () => this.jump("divergence", -1),
      x: () => this.jump("fault", 1),
      X: () => this.jump("fault", -1),
      "!": () => this.go(this.run.failAt),
      Home: () => this.go(this.layoutFirst()),
      End: () => this.go(this.lanes.layout.step(this.run.count, -1)),
      PageDown: () => this.scroll(page),
      PageUp: () => this.scroll(-page),
      "+": () => this.zoom(2),
      "=": () => this.zoom(2),
      "-": () => this.zoom(0.5),
      z: () => this.toggleScale(),
      f: () => this.toggleFold(),
      Enter: () => this.#openNextFold(),
      "/": () => byId("find").focus(),
      n: () => this.toFound(1),
      N: () => this.toFound(-1),
      t: () => this.toggleFilters(),
      ",": () => this.panel.moveLog(-5),
      ".": () => this.panel.moveLog(5),
      d: () => this.theme(this.dark ? "light" : "dark"),
      "?": () => this.help(),
    };
  }

  #only(name) {
    const lane = this.run.lanes.findIndex((one) => one.name === name);
    if (lane >= 0) this.filters.toggleLane(lane, true);
  }

  // The first closed fold behind the current event.
  #openNextFold() {
    const { folds } = this.run;
    let fold = countUpTo(folds.length, (i) => folds[i][0], this.current);
    while (this.open.has(fold)) fold++;
    if (this.folded && fold < folds.length) this.openFold(fold);
  }

  #escape() {
    if (byId("help").open) return;
    if (!byId("filters").hidden) this.toggleFilters();
    byId("find").value = "";
    this.find("");
    if (this.filters.active) this.filters.reset();
    byId("lanes").focus({ preventScroll: true });
  }
}
