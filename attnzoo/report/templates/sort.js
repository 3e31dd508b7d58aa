"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, index) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    const key = head.dataset.kind === "text"
      ? row => row.cells[index].textContent.trim()
      : row => row.cells[index].dataset.value === undefined ? null : Number(row.cells[index].dataset.value);
    const order = (a, b) => typeof a === "string" ? a.localeCompare(b) : a - b;
    const rows = [...body.rows].map(row => [key(row), row]).sort(([a], [b]) =>
      a === null || b === null ? (a === null) - (b === null) : down ? order(b, a) : order(a, b));
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows.map(([, row]) => row));
  }));
}
