// A click on a heading sorts its table: by number where every cell begins with one, empty cells last.
const key = (row, column) => row.cells[column].textContent.trim();
const number = (text) => Number.parseFloat(text.replace(/^(-?)inf/, "$1Infinity"));
for (const button of document.querySelectorAll("th > button")) button.addEventListener("click", () => {
  const heading = button.parentElement, body = heading.closest("table").tBodies[0];
  const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  const column = heading.cellIndex, rows = [...body.rows], cells = rows.map((row) => key(row, column));
  const numeric = cells.every((text) => text === "" || !Number.isNaN(number(text)));
  const compare = numeric ? (a, b) => number(a) - number(b) : (a, b) => a.localeCompare(b);
  rows.sort((one, two) => {
    const a = key(one, column), b = key(two, column);
    return a === "" || b === "" ? (a === "") - (b === "") : sign * compare(a, b);
  });
  body.append(...rows);
});
