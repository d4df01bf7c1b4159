// The lanes on their canvas: a line per peer whose width and pattern is its role, arrows, words, and the current moment.

import { countUpTo, lastBefore } from "./data.js";
import { seconds, span } from "./dom.js";
import { ROLES, ROW } from "./layout.js";

export const UP = 1, PAUSED = 2, CUT = 4, HELD = 8;
const GUTTER = 78;
const MOST_ARROWS = 2500;
const MOST_FITTING = 20_000;
const WORDS = 16; // right of a lane's line: the heads of arrows are left free
const LETTERS = ["F", "C", "L"];

export class Lanes {
  constructor(canvas, run) {
    this.canvas = canvas;
    this.run = run;
    this.context = canvas.getContext("2d");
    this.layout = null;
    this.rows = true; // or true to the clock
    this.top = 0; // what height is at the upper edge
    this.scale = 1e-7; // pixels for a nanosecond, where it is true to the clock
    this.current = 0;
    this.chain = new Set();
    this.matches = null;
    this.lanesShown = run.lanes.map((_, lane) => lane);
    this.hits = [];
    this.colours = {};
    this.fitting = new Map();
    this.viewWidth = this.viewHeight = 0; // kept: to ask the canvas makes the browser lay out the page
  }

  // ---- heights -------------------------------------------------------------------------------------------------

  y(event) {
    return this.rows ? this.layout.row[event] : this.run.time[event] * this.scale + 20;
  }

  // The height of a moment.
  yAt(ns) {
    if (!this.rows) return ns * this.scale + 20;
    const event = this.run.at(ns);
    const { row } = this.layout;
    const t = this.run.time;
    const next = this.layout.below(event);
    if (next === undefined) return row[event];
    const part = t[next] > t[event] ? (ns - t[event]) / (t[next] - t[event]) : 0;
    return row[event] + Math.max(0, Math.min(1, part)) * (row[next] - row[event]);
  }

  // The moment at a height.
  nsAt(y) {
    if (!this.rows) return Math.max(0, (y - 20) / this.scale);
    const next = this.layout.eventAtRow(y);
    return this.run.time[Math.max(0, y < this.layout.row[next] ? next - 1 : next)];
  }

  get total() {
    return this.rows ? this.layout.height : this.run.endNs * this.scale + 60;
  }

  clamp() {
    this.top = Math.max(0, Math.min(this.top, this.total - this.viewHeight));
  }

  // ---- widths --------------------------------------------------------------------------------------------------

  resize() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    [this.viewWidth, this.viewHeight] = [width, height];
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.place();
  }

  place() {
    // A client or two need room for what they read and write; of more, each is half as wide as a peer.
    const clients = this.lanesShown.filter((lane) => !this.run.lanes[lane].peer).length;
    const shares = this.lanesShown.map((lane) => (this.run.lanes[lane].peer ? 2 : clients <= 2 ? 4 : 1.6));
    const all = shares.reduce((a, b) => a + b, 0) || 1;
    const room = this.viewWidth - GUTTER;
    this.left = new Map();
    this.width = new Map();
    let x = GUTTER;
    this.lanesShown.forEach((lane, i) => {
      const wide = (room * shares[i]) / all;
      this.left.set(lane, x);
      this.width.set(lane, wide);
      x += wide;
    });
  }

  x(lane) {
    const left = this.left.get(lane);
    return left === undefined ? undefined : left + Math.min(28, this.width.get(lane) * 0.22);
  }

  // ---- drawing -------------------------------------------------------------------------------------------------

  draw() {
    const { context: g } = this;
    const { viewWidth: width, viewHeight: height } = this;
    const c = this.colours;
    this.hits = [];
    g.fillStyle = c.ground;
    g.fillRect(0, 0, width, height);
    const first = this.#eventAt(this.top - 40);
    const last = this.#eventAt(this.top + height + 40);
    this.firstVisible = this.#eventAt(this.top);
    this.lastVisible = this.#eventAt(this.top + height);
    const labels = this.#labelsIn(first, last, height);
    this.#drawBanners(labels, width);
    for (const lane of this.lanesShown) this.#drawLane(lane, height);
    this.#drawOperations(first, last);
    this.#drawTimes(first, last, height);
    const crowded = this.#drawArrows(first, last);
    for (const lane of this.lanesShown) this.#drawTerms(lane, height);
    this.#drawMoment(width, height);
    this.#drawLabels(labels, height);
    if (crowded) this.#note(`${crowded.toLocaleString("en")} messages here: zoom in (+) or switch to rows (z) to see them`, width, height);
  }

  #eventAt(y) {
    return this.rows ? this.layout.eventAtRow(y) : this.run.at(Math.max(0, (y - 20) / this.scale));
  }

  #drawBanners(labels, width) {
    const { context: g, colours: c } = this;
    for (const label of labels) {
      if (label.lane >= 0) continue;
      g.fillStyle = c[`${label.tone}Ground`];
      if (this.rows) g.fillRect(GUTTER - 4, label.y - this.top - ROW / 2, width, ROW);
      else g.fillRect(GUTTER - 4, this.y(label.event) - this.top - 1, width, 3);
    }
  }

  #drawLane(lane, height) {
    const { context: g, run, colours: c } = this;
    const x = this.x(lane);
    const left = this.left.get(lane);
    g.fillStyle = c.rule;
    g.fillRect(Math.round(left) - 2, 0, 1, height);
    if (!run.lanes[lane].peer) {
      g.fillStyle = c.faint;
      g.fillRect(x - 0.5, 0, 1, height);
      return;
    }
    const ends = [...this.#segments(lane, height)];
    for (const [y0, y1, role, condition, was] of ends) this.#drawSegment(x, Math.max(y0, -9), Math.min(y1, height + 9), role, condition, y0, was);
  }

  // The term, left of the line: where it changes, and at the upper edge.
  #drawTerms(lane, height) {
    const { context: g, run, colours: c } = this;
    if (!run.lanes[lane].peer) return;
    const x = this.x(lane);
    const terms = run.states[lane].term ?? [];
    const from = lastBefore(terms, this.firstVisible);
    g.font = c.smallFont;
    g.textAlign = "right";
    g.textBaseline = "middle";
    let before = -100;
    for (let row = Math.max(from, 0); row < terms.length / 2; row++) {
      const y = row === from ? Math.max(12, this.y(terms[2 * row]) - this.top) : this.y(terms[2 * row]) - this.top;
      if (y > height) break;
      if (terms[2 * row + 1] === 0 || y < before + 11) continue;
      before = y;
      const text = `t${terms[2 * row + 1]}`;
      const wide = 7 * text.length;
      g.fillStyle = c.ground;
      g.globalAlpha = 0.85;
      g.fillRect(x - 8 - wide, y - 6, wide + 1, 12);
      g.globalAlpha = 1;
      g.fillStyle = c.quiet;
      g.fillText(text, x - 8, y);
    }
  }

  // Stretches of one role and condition: [y0, y1, role, condition].
  *#segments(lane, height) {
    const state = this.run.states[lane];
    const roles = state.role ?? [];
    const conditions = state.condition ?? [];
    let r = lastBefore(roles, this.firstVisible);
    let k = lastBefore(conditions, this.firstVisible);
    let y0 = -20;
    for (;;) {
      const role = r >= 0 ? roles[2 * r + 1] : 0;
      const condition = k >= 0 ? conditions[2 * k + 1] : 0;
      const nextRole = 2 * (r + 1) < roles.length ? roles[2 * (r + 1)] : Infinity;
      const nextCondition = 2 * (k + 1) < conditions.length ? conditions[2 * (k + 1)] : Infinity;
      const next = Math.min(nextRole, nextCondition);
      const y1 = next === Infinity ? this.yAt(this.run.endNs) + 30 - this.top : this.y(next) - this.top;
      if (y1 > y0 && k >= 0) yield [y0, y1, role, condition, k > 0];
      if (next === Infinity || y1 > height) return;
      if (nextRole === next) r++;
      if (nextCondition === next) k++;
      y0 = Math.max(y0, y1);
    }
  }

  #drawSegment(x, y0, y1, role, condition, begin, was) {
    const { context: g, colours: c } = this;
    g.save();
    if (!(condition & UP)) {
      g.strokeStyle = c.faint;
      g.setLineDash([1, 5]);
      g.lineWidth = 1;
      line(g, x, y0, x, y1);
      if (y1 - y0 > 20 && was) {
        g.setLineDash([]);
        g.strokeStyle = c.fault;
        g.lineWidth = 2;
        cross(g, x, Math.max(y0, 0) + 10, 4);
      }
      g.restore();
      return;
    }
    const wide = [3, 7, 11][role];
    g.fillStyle = c[ROLES[role]];
    if (condition & CUT) {
      // Cut off: broken.
      for (let y = y0 - ((y0 + this.top) % 9); y < y1; y += 9) g.fillRect(x - wide / 2, Math.max(y, y0), wide, Math.min(5, y1 - y));
    } else if (role === 1) {
      g.globalAlpha = 0.35;
      g.fillRect(x - wide / 2, y0, wide, y1 - y0);
      g.globalAlpha = 1;
      g.beginPath();
      g.rect(x - wide / 2, y0, wide, y1 - y0);
      g.clip();
      g.strokeStyle = c.candidate;
      g.lineWidth = 2;
      for (let y = y0 - 8; y < y1 + 8; y += 6) line(g, x - wide, y + wide, x + wide, y - wide);
    } else {
      g.fillRect(x - wide / 2, y0, wide, y1 - y0);
    }
    if (condition & PAUSED) {
      g.strokeStyle = c.fault;
      g.lineWidth = 1.5;
      for (let y = y0 + 6; y < y1; y += 14) {
        line(g, x - 5, y - 3, x - 5, y + 3);
        line(g, x + 5, y - 3, x + 5, y + 3);
      }
    }
    g.restore();
    if (y1 - y0 > 16 && role > 0) {
      g.font = c.boldSmallFont;
      g.textAlign = "center";
      g.textBaseline = "middle";
      const y = Math.max(y0, 0) + (begin < 0 ? 8 : 9);
      g.fillStyle = c[ROLES[role]];
      g.fillRect(x - 6, y - 7, 12, 14);
      g.fillStyle = c.ground;
      g.fillText(LETTERS[role], x, y);
    }
  }

  #drawOperations(first, last) {
    for (const lane of this.lanesShown) {
      const numbers = this.run.operationsOf[lane];
      // One after the other: those in view are the last that have begun, back to one that had ended before.
      for (let i = countUpTo(numbers.length, (k) => this.run.operations[numbers[k]][1], last) - 1; i >= 0; i--) {
        const operation = this.run.operations[numbers[i]];
        if (operation[2] >= 0 && operation[2] < first) break;
        this.#drawOperation(operation);
      }
    }
  }

  #drawOperation([lane, from, to, text, accused]) {
    const { context: g, run, colours: c } = this;
    const x = this.x(lane);
    const y0 = this.y(from) - this.top;
    const y1 = (to >= 0 ? this.y(to) : this.yAt(run.endNs) + 20) - this.top;
    g.fillStyle = accused ? c.accused : c.operation;
    g.globalAlpha = accused ? 0.9 : 0.45;
    g.fillRect(x - 4, y0, 8, Math.max(2, y1 - y0));
    g.globalAlpha = 1;
    this.hits.push({ x0: x - 8, x1: x + 8, y0, y1, event: to >= 0 ? to : from });
    if (!this.rows && y1 - y0 > 10) this.#text(run.wordings[text], x + 8, y0 + 6, this.width.get(lane) - 36, accused ? c.accused : c.ink);
  }

  #drawTimes(first, last, height) {
    const { context: g, run, colours: c } = this;
    g.font = c.smallFont;
    g.textAlign = "right";
    g.textBaseline = "middle";
    if (this.rows) {
      let before = -100;
      let shownNs = -1;
      const { timed } = this.layout;
      for (let k = countUpTo(timed.length, (n) => timed[n], first - 1); k < timed.length && timed[k] <= last; k++) {
        const i = timed[k];
        const ns = run.time[i];
        const y = this.layout.row[i] - this.top;
        if (ns === shownNs || y < before + 12) continue;
        g.fillStyle = c.quiet;
        g.fillText(seconds(ns, 4), GUTTER - 14, y);
        if (shownNs >= 0 && ns - shownNs >= 50e6 && y - before > 24) {
          g.fillStyle = c.faintInk;
          g.fillText(`+${span(ns - shownNs)}`, GUTTER - 14, (before + y) / 2);
        }
        before = y;
        shownNs = ns;
      }
      return;
    }
    const steps = [1, 2, 5];
    let step = 1;
    for (let k = 0; step * this.scale < 60; k++) step = steps[k % 3] * 10 ** Math.floor(k / 3);
    const digits = Math.max(0, 9 - Math.floor(Math.log10(step)));
    for (let ns = Math.floor(this.nsAt(this.top) / step) * step; ; ns += step) {
      const y = this.yAt(ns) - this.top;
      if (y > height || ns > run.endNs) break;
      g.fillStyle = c.rule;
      g.fillRect(GUTTER - 8, y, this.viewWidth, 1);
      g.fillStyle = c.quiet;
      g.fillText(seconds(ns, digits), GUTTER - 12, y);
    }
  }

  // How many arrows there would be, if they are too many to be drawn.
  #drawArrows(first, last) {
    const { found, crowd } = this.layout.legsIn(first, last, MOST_ARROWS);
    const styles = new Map(); // arrows that look alike are drawn with one stroke
    for (const leg of found) this.#arrow(leg, styles);
    const { context: g } = this;
    for (const style of [...styles.values()].sort((a, b) => a.width - b.width)) {
      g.strokeStyle = g.fillStyle = style.colour;
      g.lineWidth = style.width;
      g.globalAlpha = style.alpha;
      g.setLineDash(style.dash);
      g.beginPath();
      for (const [x0, y0, x1, y1] of style.lines) {
        g.moveTo(x0, y0);
        g.lineTo(x1, y1);
      }
      g.stroke();
      g.setLineDash([]);
      g.beginPath();
      for (const ends of style.heads) head(g, ...ends);
      g.fill();
      g.lineWidth = 2;
      g.globalAlpha = 1;
      for (const [x, y] of style.crosses) cross(g, x, y, 4);
    }
    g.globalAlpha = 1;
    return crowd;
  }

  #arrow(leg, styles) {
    const { run, colours: c } = this;
    const [call, reply, from, to, lost] = leg;
    const calls = run.calls;
    const x0 = this.x(reply ? calls.to[call] : calls.from[call]);
    const xEnd = this.x(reply ? calls.from[call] : calls.to[call]);
    if (x0 === undefined || xEnd === undefined) return;
    const y0 = this.y(from) - this.top;
    let x1 = xEnd;
    let y1;
    if (to >= 0) y1 = this.y(to) - this.top;
    else if (lost >= 0) {
      x1 = x0 + (xEnd - x0) * 0.4;
      y1 = Math.max(this.y(lost) - this.top, y0 + 6);
    } else {
      x1 = x0 + (xEnd - x0) * 0.7;
      y1 = this.yAt(run.endNs) - this.top;
    }
    const inChain = this.chain.has(from) && (to < 0 ? lost < 0 || this.chain.has(lost) || this.current === from : this.chain.has(to));
    const faint = run.shown[from] === 2 || calls.heartbeat[call];
    const look = {
      colour: inChain ? c.chain : to < 0 && lost >= 0 ? c.lost : c[run.text(calls.kind[call])] ?? c.other,
      width: inChain ? 2.5 : 1,
      alpha: inChain ? 1 : faint ? 0.35 : reply ? 0.55 : 0.85,
      dash: calls.original[call] >= 0 ? [2, 4] : reply ? [7, 3] : [],
    };
    const key = `${look.colour} ${look.width} ${look.alpha} ${look.dash}`;
    if (!styles.has(key)) styles.set(key, { ...look, lines: [], heads: [], crosses: [] });
    const style = styles.get(key);
    const sign = x1 > x0 ? 1 : -1;
    const begin = x0 + 5 * sign;
    const end = to >= 0 ? x1 - 6 * sign : x1;
    const seen = clipped(begin, y0, end, y1, -20, this.viewHeight + 20);
    if (!seen) return;
    style.lines.push(seen);
    if (to >= 0) style.heads.push([begin, y0, end, y1]);
    else if (lost >= 0) style.crosses.push([x1, y1]);
    this.hits.push({ line: seen, event: from });
  }

  // The labels between two events; true to the clock only those that there is room for.
  #labelsIn(first, last, height) {
    const { labels, labelsOf } = this.layout;
    const from = (among) => countUpTo(among.length, (i) => among[i].event, first - 1);
    if (this.rows) {
      const end = countUpTo(labels.length, (i) => labels[i].event, last);
      return labels.slice(from(labels), end);
    }
    const found = [];
    for (const [lane, among] of labelsOf) {
      if (lane >= 0 && !this.left.has(lane)) continue;
      for (let i = from(among); i < among.length && among[i].event <= last; ) {
        const y = this.y(among[i].event);
        if (y - this.top > height + ROW) break;
        if (among[i].fold >= 0) {
          i++;
          continue;
        }
        found.push(among[i]);
        i = countUpTo(among.length, (k) => (this.y(among[k].event) < y + ROW - 3 ? 0 : 1), 0);
      }
    }
    return found;
  }

  #drawLabels(labels, height) {
    const { colours: c } = this;
    for (const label of labels) {
      const y = (this.rows ? label.y : this.y(label.event)) - this.top;
      const { lane, tone } = label;
      if (y < -ROW || y > height + ROW) continue;
      if (lane >= 0 && this.left.get(lane) === undefined) continue;
      const x = lane >= 0 ? this.x(lane) + WORDS : GUTTER;
      const most = lane >= 0 ? this.left.get(lane) + this.width.get(lane) - x + (this.width.get(lane) < 160 ? 6 : -4) : this.viewWidth - x - 10;
      const strong = tone === "leader" || tone === "candidate" || tone === "accused" || lane < 0;
      const matched = this.matches?.has(label.event);
      const width = this.#text(label.wordings, x, y, most, c[tone] ?? c.ink, { strong, matched, bare: lane < 0 && this.rows, now: label.event === this.current && label.fold < 0 });
      this.hits.push({ x0: x - 4, x1: x + Math.max(width, 20), y0: y - ROW / 2, y1: y + ROW / 2, event: label.event, fold: label.fold });
    }
  }

  #text(wordings, x, y, most, colour, { strong = false, matched = false, now = false, bare = false } = {}) {
    const { context: g, colours: c } = this;
    if (most < 14) return 0;
    g.font = strong ? c.boldFont : c.font;
    g.textAlign = "left";
    g.textBaseline = "middle";
    const [shown, width] = this.#fitting(wordings, most, strong);
    if (!bare || matched || now) {
      g.globalAlpha = matched || now ? 1 : 0.78;
      g.fillStyle = now ? c.nowGround : matched ? c.matchGround : c.ground;
      g.fillRect(x - 2, y - 7, width + 4, 15);
      g.globalAlpha = 1;
    }
    g.fillStyle = colour;
    g.fillText(shown, x, y + 0.5);
    return width;
  }

  // The longest wording that there is room for, cut if need be, and its width. Measured once.
  #fitting(wordings, most, strong) {
    const key = `${strong} ${Math.floor(most)} ${wordings[0]}`;
    const known = this.fitting.get(key);
    if (known) return known;
    const { context: g } = this;
    const shown = this.#fit(wordings.find((one) => one.length < 500 && g.measureText(one).width <= most) ?? wordings.at(-1), most);
    const made = [shown, g.measureText(shown).width];
    if (this.fitting.size > MOST_FITTING) this.fitting.clear();
    this.fitting.set(key, made);
    return made;
  }

  #fit(text, most) {
    const { context: g } = this;
    const wide = g.measureText("n").width;
    if (text.length < 500 && g.measureText(text).width <= most) return text;
    let count = Math.min(text.length, Math.floor(most / wide) + 2);
    while (count > 1 && g.measureText(`${text.slice(0, count)}…`).width > most) count--;
    if (count >= text.length) return text;
    // Rather a whole word less than half of one.
    const word = text.lastIndexOf(" ", count);
    return `${text.slice(0, word >= count / 2 ? word : count)}…`;
  }

  #drawMoment(width) {
    const { context: g, run, colours: c } = this;
    const y = this.y(this.current) - this.top;
    g.fillStyle = c.now;
    g.fillRect(GUTTER - 10, y - 0.5, width, 1.5);
    g.beginPath();
    g.moveTo(2, y - 6);
    g.lineTo(12, y);
    g.lineTo(2, y + 6);
    g.fill();
    const x = this.x(run.lane[this.current]);
    if (x !== undefined) {
      g.strokeStyle = c.now;
      g.lineWidth = 2.5;
      g.beginPath();
      g.arc(x, y, 9, 0, 7);
      g.stroke();
    }
    if (run.evidence.has(run.failAt)) {
      const at = this.y(run.failAt) - this.top;
      const accused = this.x(run.lane[run.failAt]);
      g.strokeStyle = c.accused;
      g.lineWidth = 2;
      if (accused !== undefined) {
        g.strokeRect(accused - 12, at - 12, 24, 24);
      }
    }
  }

  #note(text, width, height) {
    const { context: g, colours: c } = this;
    g.font = c.boldFont;
    g.textAlign = "center";
    const wide = g.measureText(text).width;
    g.fillStyle = c.nowGround;
    g.fillRect(width / 2 - wide / 2 - 12, height - 40, wide + 24, 26);
    g.fillStyle = c.ink;
    g.fillText(text, width / 2, height - 27);
    g.textAlign = "left";
  }

  // What is at a point: {event, fold}, or null.
  hit(x, y) {
    let best = null;
    let near = 7;
    for (const one of this.hits) {
      if (one.line) {
        const off = distance(x, y, ...one.line);
        if (off < near) [near, best] = [off, one];
      } else if (x >= one.x0 && x <= one.x1 && y >= one.y0 && y <= one.y1) return one;
    }
    return best;
  }
}

function line(g, x0, y0, x1, y1) {
  g.beginPath();
  g.moveTo(x0, y0);
  g.lineTo(x1, y1);
  g.stroke();
}

function head(g, x0, y0, x1, y1) {
  const turn = Math.atan2(y1 - y0, x1 - x0);
  g.moveTo(x1, y1);
  g.lineTo(x1 - 8 * Math.cos(turn - 0.4), y1 - 8 * Math.sin(turn - 0.4));
  g.lineTo(x1 - 8 * Math.cos(turn + 0.4), y1 - 8 * Math.sin(turn + 0.4));
  g.closePath();
}

// What of a line is between two heights, or null: a dashed line far longer than the view takes for ever.
function clipped(x0, y0, x1, y1, top, bottom) {
  if (Math.max(y0, y1) < top || Math.min(y0, y1) > bottom) return null;
  const at = (y) => (y1 === y0 ? x0 : x0 + ((x1 - x0) * (y - y0)) / (y1 - y0));
  const within = (y) => Math.max(top, Math.min(bottom, y));
  const [from, to] = [within(y0), within(y1)];
  return [from === y0 ? x0 : at(from), from, to === y1 ? x1 : at(to), to];
}

function cross(g, x, y, r) {
  line(g, x - r, y - r, x + r, y + r);
  line(g, x - r, y + r, x + r, y - r);
}

function distance(x, y, x0, y0, x1, y1) {
  const long = (x1 - x0) ** 2 + (y1 - y0) ** 2;
  const part = long ? Math.max(0, Math.min(1, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / long)) : 0;
  return Math.hypot(x - x0 - part * (x1 - x0), y - y0 - part * (y1 - y0));
}
