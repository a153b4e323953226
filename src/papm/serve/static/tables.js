// The small tables beside the image: what was counted by class, and by each of several models.

import { spread } from "./files.js";
import { colour } from "./painting.js";

export const number = (v) => (Number.isInteger(v) || Math.abs(v) >= 100 ? Math.round(v).toLocaleString("en") : v.toFixed(1));

function fill(table, rows) { // a row: what stands first, then numbers
  table.hidden = !rows.length;
  table.tBodies[0].replaceChildren(...rows.map(([first, ...numbers]) => {
    const row = document.createElement("tr");
    row.insertCell().append(...first);
    for (const value of numbers) {
      const cell = row.insertCell();
      cell.className = "n";
      cell.textContent = number(value);
    }
    return row;
  }));
}

export function showClasses(table, classes, item) {
  fill(table, classes.map((kind, k) => {
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colour(k);
    return [[swatch, kind.name], kind.count, item.dots.filter((d) => (d.label || 0) === k).length];
  }));
}

export function showModels(table, models) { // the model's count is their mean
  fill(table, models.map((model) => [[model.name], model.count]));
  const apart = spread(models);
  table.tFoot.hidden = apart < 0;
  if (apart < 0) return;
  const counts = models.map((m) => m.count);
  table.tFoot.rows[0].cells[1].textContent = `${number(Math.min(...counts))} to ${number(Math.max(...counts))} (${Math.round(100 * apart)} %)`;
}
