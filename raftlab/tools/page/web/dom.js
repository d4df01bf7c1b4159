// Elements, and nothing but text in them: what a peer wrote can never become markup.

export const byId = (id) => document.getElementById(id);

export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child != null && child !== false) made.append(child instanceof Node ? child : String(child));
  }
  return made;
}

export const fill = (parent, ...children) => parent.replaceChildren(...children.flat().filter((child) => child != null && child !== false));

const made = new WeakMap(); // by parent: its children, by their keys

// Children with keys: [key, how it is made]. One that was there with the same key stays, so that a browser has only to lay
// out what is new. A key must tell all that its child shows.
export function refill(parent, parts) {
  const known = made.get(parent) ?? new Map();
  const now = new Map(parts.filter(Boolean).map(([key, make]) => [key, known.get(key) ?? make()]));
  made.set(parent, now);
  for (const [key, child] of known) if (!now.has(key)) child.remove();
  let place = parent.firstChild;
  for (const child of now.values()) {
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
}

// 1.588293 s: to the microsecond where that matters, never more than the clock has.
export function seconds(ns, digits = 6) {
  return (ns / 1e9).toFixed(digits);
}

export function span(ns) {
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${+(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e9) return `${+(ns / 1e6).toFixed(ns < 1e7 ? 2 : 0)} ms`;
  return `${+(ns / 1e9).toFixed(2)} s`;
}
