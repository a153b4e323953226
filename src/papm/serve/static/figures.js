// The figures beside the image, the hint below it, and which buttons can be pressed.

import { showScale } from "./colours.js";
import { dotsInside, regions } from "./files.js";
import { $, alone, counted, some, state, unsaved } from "./state.js";
import { number, showClasses, showModels } from "./tables.js";

const HINTS = {
  look: "Drag to move, scroll or pinch to zoom.",
  dots: "Click to add or remove a dot; drag one to move it.",
  region: "Click the corners; click the first one again to close the region.",
};

function countNote({ width, height, raw_count: raw, interval, warning }) {
  const factor = raw !== undefined && `raw count ${number(raw)}, calibrated`;
  const range = interval && `between ${number(interval[0])} and ${number(interval[1])}, nine times in ten`;
  return [factor, range, `${width} × ${height} pixels`, warning].filter(Boolean).join("; ");
}

function dotsNote(item) {
  if (alone()) return "";
  const own = item.dots.filter((d) => d.own).length, moved = item.dots.filter((d) => d.moved).length;
  const removed = item.reply.points.length - (item.dots.length - own);
  if (!own && !removed && !moved) return "the model’s points";
  return `${own} added, ${removed} removed${moved ? `, ${moved} moved` : ""} by hand`;
}

function showRegion(item) {
  const corners = state.draft.length > 2 ? state.draft : item?.roi; // also while it is drawn
  $("in-region").hidden = !corners || item.state !== "done";
  if ($("in-region").hidden) return;
  const inside = dotsInside(item, corners), drawn = corners === state.draft;
  if (alone() || drawn) $("region").textContent = String(inside);
  else $("region").textContent = item.region?.count === undefined ? (item.region?.fault ? "–" : "…") : number(item.region.count);
  const note = alone() ? "" : drawn ? "dots, so far" : `model’s count; ${some(inside, "dot")}`;
  $("region-note").textContent = item.region?.fault || note;
}

export function showFigures() {
  const item = state.current, done = item?.state === "done";
  $("name").textContent = item ? item.name : "";
  $("fault").hidden = !item?.fault;
  $("fault-text").textContent = item?.fault || "";
  $("retry").hidden = item?.state !== "failed";
  $("count").textContent = done ? number(item.reply.count) : item?.state === "failed" ? "–" : "…";
  $("count-note").textContent = done ? countNote(item.reply) : "";
  $("dots").textContent = done ? number(item.dots.length) : "–";
  $("dots-note").textContent = done ? dotsNote(item) : "";
  showRegion(item);
  showClasses($("classes"), (done && item.reply.classes) || [], item);
  showModels($("models"), (done && item.reply.models) || []);
  showScale($("scale"), done && $("show-density").checked ? item.reply.density : null, state.model.ramp);
  $("checked").checked = Boolean(item?.checked);
  $("checked").disabled = !done;
  showTools();
}

export function showTools() {
  const { current: item, draft, mode, model } = state, done = item?.state === "done";
  $("hint").textContent = HINTS[mode];
  $("class").hidden = mode !== "dots" || model.classes.length < 2;
  for (const [id, steps] of [["undo", "past"], ["redo", "future"]]) {
    $(id).hidden = mode === "look" || (mode === "region" && id === "redo");
    $(id).disabled = !done || !(mode === "region" ? draft : item[steps]).length;
  }
  $("reset").hidden = mode !== "dots" || alone();
  $("reset").disabled = !done || item.dots === item.seen;
  $("close-region").hidden = mode !== "region" || Boolean(item?.roi && !draft.length);
  $("close-region").disabled = draft.length < 3;
  $("clear-region").hidden = mode !== "region" || !item?.roi;
  $("canvas").classList.toggle("over-dot", Boolean(state.hover));
  for (const one of ["look", "dots", "region"]) $("canvas").classList.toggle(one, one === mode);
  showDownloads();
}

export function showDownloads() {
  const all = counted(), checked = all.filter((i) => i.checked).length, open = all.filter((i) => unsaved(i) && !i.checked).length;
  for (const id of ["get-counts", "get-points"]) $(id).disabled = !all.length;
  $("get-dots").disabled = !checked;
  $("get-regions").hidden = !regions(all).length;
  $("get-dots").textContent = checked > 1 ? `Checked dots (${checked})` : "Checked dots";
  const left = open && `${some(open, "image")} with changed dots ${open > 1 ? "are" : "is"} not ticked as checked and left out.`;
  const help = checked ? "Put each NAME.txt beside its image: papm train reads them." : `${alone() ? "Mark" : "Correct"} the dots of an image and tick it as checked to download them for papm train.`;
  $("dots-help").textContent = [help, left].filter(Boolean).join(" ");
}
