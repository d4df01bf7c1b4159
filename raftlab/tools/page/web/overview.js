// The whole run in a strip: a thin column per peer in the colours of its roles, elections, faults, the failure, and a
// frame around what is in view. True to the clock.

import { UP, CUT } from "./lanes.js";
import { ROLES } from "./layout.js";

const TOP = 6;

export class Overview {
  constructor(canvas, run) {
    this.canvas = canvas;
    this.run = run;
    this.still = null;
    this.colours = {};
    this.width = this.height = 0; // kept, as in Lanes
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    [this.width, this.height] = [width, height];
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    this.still = null;
  }

  y(ns) {
    return TOP + (ns / Math.max(this.run.endNs, 1)) * (this.height - 2 * TOP);
  }

  nsAt(y) {
    const part = (y - TOP) / (this.height - 2 * TOP);
    return Math.max(0, Math.min(1, part)) * this.run.endNs;
  }

  // What does not change while one steps is drawn once.
  #drawStill() {
    const { run, colours: c } = this;
    const { width, height } = this;
    const ratio = window.devicePixelRatio || 1;
    this.still = document.createElement("canvas");
    this.still.width = this.canvas.width;
    this.still.height = this.canvas.height;
    const g = this.still.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.fillStyle = c.ground;
    g.fillRect(0, 0, width, height);
    const wide = Math.min(9, (width - 30) / run.peers.length);
    run.peers.forEach((lane, i) => {
      const state = run.states[lane];
      const x = 14 + i * wide;
      const cuts = [...pairs(state.role), ...pairs(state.condition)].map(([at]) => at);
      const points = [...new Set(cuts)].sort((a, b) => a - b);
      points.forEach((at, k) => {
        const condition = run.field(lane, "condition", at).value;
        if (!(condition & UP)) return;
        const role = run.field(lane, "role", at).value;
        const y0 = this.y(run.time[at]);
        const y1 = this.y(k + 1 < points.length ? run.time[points[k + 1]] : run.endNs);
        const thick = [0.3, 0.6, 0.95][role] * wide;
        g.globalAlpha = condition & CUT ? 0.35 : 1;
        g.fillStyle = c[ROLES[role]];
        g.fillRect(x + (wide - thick) / 2, y0, thick, Math.max(0.7, y1 - y0));
      });
    });
    g.globalAlpha = 1;
    const right = 14 + run.peers.length * wide + 3;
    g.fillStyle = c.candidate;
    for (const at of run.jumps.election) g.fillRect(right, this.y(run.time[at]), 6, 1.5);
    g.fillStyle = c.fault;
    for (const at of run.jumps.fault) g.fillRect(3, this.y(run.time[at]), 8, 1);
    if (run.failAt >= 0) {
      g.fillStyle = c.accused;
      g.fillRect(0, this.y(run.time[run.failAt]) - 1.5, width, 3);
    }
  }

  draw(fromNs, toNs, nowNs) {
    const { canvas, colours: c } = this;
    if (!this.still) this.#drawStill();
    const g = canvas.getContext("2d");
    const { width, height } = this;
    g.drawImage(this.still, 0, 0, width, height);
    const y0 = this.y(fromNs);
    const y1 = Math.max(this.y(toNs), y0 + 4);
    g.strokeStyle = c.now;
    g.lineWidth = 2;
    g.strokeRect(1, y0 - 1, width - 2, y1 - y0 + 2);
    g.fillStyle = c.now;
    g.fillRect(0, this.y(nowNs) - 0.75, width, 1.5);
  }
}

function pairs(flat = []) {
  const found = [];
  for (let i = 0; i < flat.length; i += 2) found.push([flat[i], flat[i + 1]]);
  return found;
}
