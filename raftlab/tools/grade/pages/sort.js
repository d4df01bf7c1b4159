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
