"""How the pages of `lab grade` look, and the few lines of script that sort a table.

Light and dark, paper and telephone. One accent colour; failures have a sign and a word besides theirs.
"""

CSS = """
:root {
  --paper: #fff; --soft: #f5f7f9; --line: #dfe4e9; --ink: #1d242c; --faint: #5a6672;
  --accent: #2c6390; --bad: #a8392b; --bad-soft: #fcf3f1; --bad-line: #ebc8c2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15191e; --soft: #1c2128; --line: #313943; --ink: #e3e8ed; --faint: #9aa6b2;
    --accent: #7db1dd; --bad: #f1998a; --bad-soft: #2a1e1d; --bad-line: #5b3a36;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 3rem 2rem 5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; font-weight: 650; margin: 0; letter-spacing: -.01em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; font-weight: 650; margin: 0 0 1rem; }
h3 { font-size: 1rem; font-weight: 600; margin: 0 0 .75rem; overflow-wrap: anywhere; }
section { margin-top: 3.25rem; }
p { margin: 0 0 .75rem; max-width: 46rem; }
a { color: var(--accent); text-underline-offset: .15em; text-decoration-thickness: 1px; }
a:focus-visible, button:focus-visible, summary:focus-visible, pre:focus-visible, .copy:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px; }
code, pre, .copy { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-size: .86em; }
.over { color: var(--faint); margin: 0 0 .3rem; }
.faint { color: var(--faint); }
.small { font-size: .875rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bad-word { color: var(--bad); font-weight: 600; }
.tag { display: inline-block; font-size: .78rem; line-height: 1.5; padding: 0 .5em; margin: 0 .3em .15em 0;
  border: 1px solid var(--line); border-radius: 1em; color: var(--faint); }
.tag.bad { color: var(--bad); border-color: var(--bad-line); background: var(--bad-soft); }

.score { display: grid; grid-template-columns: minmax(11rem, auto) minmax(0, 1fr); gap: 1.5rem 4rem;
  align-items: center; margin-top: 2rem; padding: 1.75rem 2rem; background: var(--soft); border-radius: 12px; }
.score .figure { font-size: 4rem; line-height: 1; font-weight: 650; letter-spacing: -.03em; margin: 0;
  font-variant-numeric: tabular-nums; }
.score .of { color: var(--faint); margin: .4rem 0 0; }
.under { margin: 1rem 0 0; }
.parts { border-collapse: collapse; width: 100%; }
.parts th, .parts td { padding: .3rem 0; border: 0; vertical-align: middle; }
.parts th { width: 5rem; padding-right: .8rem; font-weight: 600; white-space: nowrap; }
.parts td.number { width: 8.5rem; }
.bar { display: block; height: .55rem; min-width: 3rem; border-radius: .3rem; background: var(--line);
  overflow: hidden; }
.bar > span { display: block; height: 100%; background: var(--accent); border-radius: .3rem; }
.bar.bad > span { background: var(--bad); }
.bar, .hist i, .score, .figures > div { print-color-adjust: exact; -webkit-print-color-adjust: exact; }

.box { margin-top: 1.5rem; padding: 1.1rem 1.4rem; border: 1px solid var(--line); border-left: 4px solid var(--accent);
  border-radius: 8px; }
.box.bad { border-color: var(--bad-line); border-left-color: var(--bad); background: var(--bad-soft); }
.box h2 { font-size: 1rem; margin-bottom: .4rem; }
.box p, .box ul { margin-bottom: 0; overflow-wrap: anywhere; white-space: pre-line; }
.box ul { padding-left: 1.2rem; margin-top: 0; white-space: normal; }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .5rem .9rem .5rem 0; text-align: left; vertical-align: baseline;
  border-bottom: 1px solid var(--line); }
th:last-child, td:last-child { padding-right: 0; }
thead th { font-size: .8rem; font-weight: 600; color: var(--faint); white-space: nowrap; }
tbody th { font-weight: 400; }
th.number { text-align: right; }
.two { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: baseline; gap: 0 1.5rem;
  overflow-wrap: anywhere; }
.verdict { white-space: nowrap; width: 6.5rem; }
.tests td.number { width: 6.5rem; }
.bars td:last-child { width: 34%; }
.cause { overflow-wrap: anywhere; }

article { margin-top: 1rem; padding: .9rem 1.4rem; border: 1px solid var(--line); border-radius: 10px; }
.scroll + article { margin-top: 1.75rem; }
article:target { border-color: var(--accent); }
article h3 { margin: 0; }
article .head { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1.5rem; }
details { margin: .5rem 0; }
article > details:last-child { margin-bottom: 0; }
summary { cursor: pointer; padding: .15rem 0; overflow-wrap: anywhere; }
summary::marker { color: var(--faint); }
pre { margin: .5rem 0; padding: .9rem 1.1rem; background: var(--soft); border-radius: 8px; font-size: .8rem;
  line-height: 1.5; white-space: pre-wrap; overflow-wrap: anywhere; overflow: auto; max-height: 44rem; tab-size: 4; }
pre > span { --indent: 0ch; display: block; padding-left: calc(var(--indent) + 2ch);
  text-indent: calc(-2ch - var(--indent)); direction: ltr; unicode-bidi: isolate; }
.copy { display: block; margin: .3rem 0 .6rem; padding: .5rem .8rem; font-size: .8rem; border: 1px dashed var(--line);
  border-radius: 8px; -webkit-user-select: all; user-select: all; cursor: copy; overflow-wrap: anywhere; }
.every { margin-top: 1.5rem; }
.label { font-size: .8rem; font-weight: 600; color: var(--faint); margin: .9rem 0 .2rem; }
.acts { margin: .2rem 0 .6rem; padding-left: 1.2rem; overflow-wrap: anywhere; }

.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 1rem; margin-top: 2rem; }
.figures > div { padding: 1.1rem 1.3rem; background: var(--soft); border-radius: 12px; }
.figures dt { color: var(--faint); font-size: .875rem; }
.figures dd { margin: 0; font-size: 1.9rem; line-height: 1.3; font-weight: 650; font-variant-numeric: tabular-nums; }
dl { margin: 0; }
.hist { display: flex; align-items: flex-end; gap: .5rem; margin: 0; padding: 0; list-style: none; }
.hist li { flex: 1; min-width: 0; text-align: center; }
.hist b { display: block; font-weight: 600; font-variant-numeric: tabular-nums; }
.hist b.none { color: var(--faint); font-weight: 400; }
.hist li > span { display: flex; align-items: flex-end; height: 9rem; border-bottom: 1px solid var(--line); }
.hist i { display: block; width: 100%; background: var(--accent); border-radius: 4px 4px 0 0; }
.hist small { color: var(--faint); font-size: .78rem; white-space: nowrap; }
.class { font-size: .925rem; }
.class th, .class td { padding-right: .7rem; }
.class th[scope=row] { min-width: 13rem; max-width: 17rem; overflow-wrap: anywhere; }
.class tbody a { text-decoration: none; }
.class tbody a:hover { text-decoration: underline; }
.class td { white-space: nowrap; }
.class td.flags { white-space: normal; }
.class tbody tr:hover { background: var(--soft); }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th button::after { content: "\\2195"; display: inline-block; width: 1.1em; text-align: center; opacity: .45; }
th[aria-sort] button { color: var(--accent); }
th[aria-sort=ascending] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort=descending] button::after { content: "\\2193"; opacity: 1; }
@media (min-width: 72rem) {
  .class-scroll .scroll { overflow: visible; }
  .class thead th { position: sticky; top: 0; background: var(--paper); box-shadow: inset 0 -1px var(--line); }
}
@media (max-width: 44rem) {
  main { padding: 1.75rem 1.1rem 3rem; }
  h1 { font-size: 1.5rem; }
  section { margin-top: 2.5rem; }
  .score { grid-template-columns: minmax(0, 1fr); padding: 1.3rem 1.2rem; }
  .score .figure { font-size: 3.2rem; }
  .parts th { width: 4.2rem; }
  .parts td.number { width: 6.5rem; }
  th, td { padding-right: .7rem; }
  .verdict { width: auto; }
  .tests td.number { width: auto; }
  article { padding: 1rem; }
  pre { font-size: .72rem; padding: .7rem .8rem; max-height: none; }
  .hist { gap: .2rem; }
  .hist small span { display: none; }
}
@media print {
  :root { --paper: #fff; --soft: #f5f7f9; --line: #ccd3da; --ink: #000; --faint: #444; --accent: #2c6390;
    --bad: #8f2a1d; --bad-soft: #fff; --bad-line: #d9aaa3; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  section { margin-top: 1.6rem; }
  pre { max-height: none; font-size: 7.5pt; }
  .scroll { overflow: visible; }
  .figures { grid-template-columns: repeat(6, 1fr); gap: .5rem; }
  .figures > div { padding: .6rem .8rem; }
  .class { font-size: 8pt; }
  .class th[scope=row] { min-width: 0; }
  .class thead th { position: static; }
  th button::after { content: none; }
  tr, .box, .score, h2, h3 { break-inside: avoid; }
  h2, h3, thead { break-after: avoid; }
  a { color: inherit; text-decoration: none; }
}
"""

# Without it the headers are plain words. A page opened with #sort=score is sorted by that column at once.
SORT_JS = """
"use strict";
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const value = ({dataset, textContent}) => dataset.v === undefined ? textContent : +dataset.v;
  const compare = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, "en");
  const sort = (i) => {
    const up = heads[i].ariaSort ? heads[i].ariaSort !== "ascending" : heads[i].dataset.first !== "down";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[i].setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * compare(value(a.cells[i]), value(b.cells[i])));
    body.append(...rows);
  };
  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(i));
    head.append(button);
    if (location.hash === "#sort=" + head.dataset.key) sort(i);
  });
}
"""
