"use strict";
// Tables are sorted by a click on a heading: by data-order, as numbers where all are, cells without one last.
function sortTable(table, place, descending) {
  const order = (row) => row.cells[place].dataset.order;
  const rows = Array.from(table.tBodies[0].rows);
  const known = rows.filter((row) => order(row) !== undefined);
  const numbers = known.every((row) => order(row).trim() !== "" && !Number.isNaN(Number(order(row))));
  const compared = numbers
    ? (one, other) => Number(order(one)) - Number(order(other))
    : (one, other) => order(one).localeCompare(order(other), undefined, { numeric: true });
  known.sort((one, other) => (descending ? compared(other, one) : compared(one, other)));
  table.tBodies[0].append(...known, ...rows.filter((row) => order(row) === undefined));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = Array.from(table.tHead.rows[0].cells);
  headings.forEach((heading, place) => {
    heading.querySelector("button").addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const descending = before ? before === "ascending" : heading.classList.contains("right");
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortTable(table, place, descending);
    });
  });
}

// A table that is wider than the page says so: not every browser shows a scroll bar.
function markWideTables() {
  for (const box of document.querySelectorAll(".scroll")) {
    box.classList.toggle("wide", box.scrollWidth > box.clientWidth);
  }
}
window.addEventListener("resize", markWideTables);
markWideTables();
