"use strict";
// Headings become buttons that sort. Without this script the page is complete, only in its own order.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("num");
      const was = head.getAttribute("aria-sort");
      const down = was ? was === "ascending" : numeric;
      const key = (row) => {
        const cell = row.cells[column];
        if (!numeric) return cell.textContent;
        return cell.dataset.value === undefined ? -Infinity : Number(cell.dataset.value);
      };
      const order = (a, b) => (numeric ? key(a) - key(b) || 0 : key(a).localeCompare(key(b), undefined, { numeric: true }));
      const rows = Array.from(table.tBodies[0].rows).sort(down ? (a, b) => order(b, a) : order);
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      table.tBodies[0].append(...rows);
    });
  });
}

// A box over a list: rows stay that have every word in a name, a status or an id.
for (const part of document.querySelectorAll(".filtered")) {
  const box = part.querySelector("input");
  const rows = Array.from(part.querySelector("tbody").rows);
  const texts = new Map(rows.map((row) => [row, Array.from(row.querySelectorAll(".long"), (cell) => cell.textContent).join(" ").toLowerCase()]));
  const apply = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => texts.get(row).includes(word));
      if (!row.hidden) shown += 1;
    }
    part.querySelector("output").textContent = words.length ? `${shown} of ${rows.length} runs` : "";
  };
  box.addEventListener("input", apply);
  part.querySelector(".filter").hidden = false;
  apply(); // A browser that was reloaded may have kept what was in the box.
}
