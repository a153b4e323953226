// The page of `papm serve`: images go to /api/count one after the other; dots, regions and downloads are made here.

import { calibration, rescale, showCalibration } from "./calibrating.js";
import { Saved } from "./dots.js";
import { dotAt, Editor } from "./editing.js";
import { showDownloads, showFigures, showTools } from "./figures.js";
import { countsTable, dotsFiles, dotsInside, pointsTable, regions, save, unused, zipped } from "./files.js";
import { gestures } from "./gestures.js";
import { keys } from "./keys.js";
import { byName, ordered, putBack, showList, showRow, showStatus, takeOut } from "./list.js";
import { fitted, paint, zoomed } from "./painting.js";
import { decoded, dropped, post, thumbnail } from "./sending.js";
import { $, alone, counted, state, unsaved } from "./state.js";

const canvas = $("canvas"), saved = new Saved(), editor = new Editor(refresh), { items } = state;

// --- talking to the server ---------------------------------------------------------------------------------------------

async function begin() {
  try {
    state.model = await (await fetch("api/model")).json();
  } catch {
    $("status").textContent = "No answer from papm serve.";
    return;
  }
  const { model } = state;
  document.title = `${model.name} · papm`;
  document.body.classList.toggle("alone", alone());
  if (alone()) document.querySelector("input[value=dots]").click();
  const about = [model.name, model.method, model.backbone, model.trained_on && `trained on ${model.trained_on}`, model.steps && `${model.steps} steps`];
  $("about").textContent = about.filter(Boolean).join(" · ");
  for (const [k, name] of model.classes.entries()) $("class").append(new Option(k < 9 ? `${k + 1} ${name}` : name, k));
  $("show-density").closest("label").hidden = model.counts !== "density"; // a point network has no map
  $("sort").querySelector("[value=spread]").hidden = !(model.models?.length > 1);
  const here = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  $("promise").textContent = here ? "They stay on this machine; papm keeps none of them." : `They are sent to ${location.hostname}, where papm keeps none of them.`;
  showCalibration();
}

async function add(files) {
  const images = await saved.read(files);
  for (const file of images.sort(byName)) {
    items.push({ file, name: unused(file.name || "image", items), state: "waiting", dots: [], past: [], future: [], roi: null, region: null, checked: false });
  }
  for (const item of items) saved.give(item, state.model.classes.length);
  listed();
  if (!state.current && items.length) select(ordered()[0]);
  pump();
}

let pumping = false;
async function pump() {
  if (pumping) return;
  pumping = true;
  for (let item; (item = items.find((i) => i.state === "waiting")); ) {
    item.state = "counting";
    item.stop = new AbortController();
    item.fault = "";
    refresh(item);
    try {
      const { max_bytes: most } = state.model;
      if (item.file.size > most) throw new Error(`${item.name}: larger than ${Math.round(most / 1e6)} MB, the most that is taken`);
      item.reply = await (await post("api/count", { image: item.file }, item.stop.signal)).json();
      rescale(item); // another factor may have been accepted meanwhile
      item.dots = item.kept = item.seen = item.reply.points.map((p) => ({ ...p, own: false }));
      item.state = "done";
      saved.give(item, state.model.classes.length);
    } catch (error) {
      item.state = item.stop.signal.aborted ? "waiting" : "failed"; // one that was removed waits to be put back
      item.fault = item.stop.signal.aborted ? "" : error.message;
    }
    await open(item).catch((error) => (item.fault = error.message));
    if (item !== state.current) item.image = null;
    refresh(item);
    if (items.includes(item)) listed(); // its place may depend on its count
  }
  pumping = false;
}

function retry(item) {
  if (item.state !== "failed") return;
  item.state = "waiting";
  refresh(item);
  pump();
}

// The picture to draw: the browser's own, or the server's where the browser cannot show the format or shows another size.
async function open(item) {
  if (item.image || !item.reply) return;
  const { width, height } = item.reply;
  let image = await decoded(item.file).catch(() => null);
  if (!image || image.naturalWidth !== width || image.naturalHeight !== height) {
    image = await decoded(await (await post("api/preview", { image: item.file })).blob());
  }
  item.image = image;
  if (item.reply.density && !item.layer) {
    item.layer = new Image();
    item.layer.src = item.reply.density.png;
    await item.layer.decode();
  }
  if (!item.thumb) item.thumb = thumbnail(image);
}

// --- what is shown -----------------------------------------------------------------------------------------------------

function recount(item) {
  if (!alone() || !item.reply) return;
  item.reply.count = item.dots.length;
  item.reply.classes?.forEach((kind, k) => (kind.count = item.dots.filter((d) => (d.label || 0) === k).length));
  if (item.roi) item.region = { count: dotsInside(item) };
}

function refresh(item) { // after any change of an image
  recount(item);
  showRow(item);
  showStatus(saved.note);
  showCalibration();
  if (item !== state.current) return showDownloads();
  if (item.image && !item.fitted) fit();
  look();
  show();
}

function listed() { // after images came or went
  showList({ select, remove, retry });
  $("work").hidden = !items.length;
  $("sort").closest("label").hidden = items.length < 2;
  document.body.classList.toggle("used", items.length > 0);
  refresh(state.current || {});
}

function show() {
  showFigures();
  draw();
}

async function select(item) {
  if (state.current && state.current !== item) state.current.image = null; // one decoded photo at a time
  Object.assign(state, { current: item, draft: [], cursor: null, hover: null });
  editor.drop(false);
  for (const i of items) i.button?.setAttribute("aria-current", i === item);
  show();
  if (!item) return;
  try {
    await open(item);
  } catch (error) {
    item.fault = error.message;
  }
  if (item !== state.current) return;
  fit();
  show();
}

function remove(item) {
  const next = takeOut(item);
  if (item === state.current) select(next);
  listed();
  (state.current?.button || $("files")).focus();
}

function back() {
  const item = putBack(unused);
  select(item);
  listed();
  item.button.focus();
  pump();
}

function next(by) {
  const rows = ordered(), to = rows[rows.indexOf(state.current) + by];
  if (!to) return;
  select(to);
  to.button.scrollIntoView({ block: "nearest" });
}

// --- drawing -----------------------------------------------------------------------------------------------------------

let whole = null; // the view that shows all of the image
function fit() {
  if (!state.current?.reply) return;
  state.view = whole = fitted(canvas, state.current.reply);
  state.current.fitted = true;
  draw();
}

function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  if (!state.current?.reply) return;
  state.view = zoomed(state.view, canvas, state.current.reply, factor, x, y);
  draw();
}

let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    paint(canvas, {
      item: state.current, view: state.view, draft: state.draft, hover: state.hover,
      density: $("show-density").checked,
      points: $("show-points").checked || state.mode === "dots",
      cursor: document.activeElement === canvas && state.mode !== "look" && state.cursor,
    });
  });
}

// --- pointer and keys --------------------------------------------------------------------------------------------------

let mouse = null; // where it is over the image
function look() { // which dot is under it
  if (!editor.held) state.hover = mouse && !state.cursor ? dotAt(...mouse, false) : null;
}

gestures(canvas, {
  pan(dx, dy) {
    state.view = { ...state.view, x: state.view.x + dx, y: state.view.y + dy };
    draw();
  },
  zoom,
  tap: (...where) => editor.act(...where),
  touched: () => (state.cursor = null),
  grab: (...where) => editor.grab(...where),
  drag(...where) {
    mouse = mouse && where;
    editor.drag(...where);
  },
  drop: (kept) => editor.drop(kept),
  hover(x, y) {
    mouse = x === null ? null : [x, y];
    if (mouse) state.cursor = null; // the mouse says now which dot is meant
    look();
    showTools();
    draw();
  },
});
keys(canvas, editor, { zoom, fit, next, show, putBack: back });

// --- the rest of the page ----------------------------------------------------------------------------------------------

$("files").onchange = (e) => {
  add([...e.target.files]);
  e.target.value = "";
};
addEventListener("dragover", (e) => {
  e.preventDefault();
  $("drop").classList.add("over");
});
addEventListener("dragleave", () => $("drop").classList.remove("over"));
addEventListener("drop", async (e) => {
  e.preventDefault();
  $("drop").classList.remove("over");
  const files = await dropped(e.dataTransfer);
  if (!files.length) $("status").textContent = "There are no images in that folder.";
  add(files);
});
addEventListener("paste", (e) => add([...(e.clipboardData?.files || [])]));
addEventListener("beforeunload", (e) => [...items, ...state.removed.map((r) => r.item)].some(unsaved) && e.preventDefault());
for (const radio of document.querySelectorAll("input[name=mode]")) {
  radio.onchange = () => {
    Object.assign(state, { mode: radio.value, draft: [], hover: null });
    if (radio.value === "dots") $("show-points").checked = true;
    show();
  };
}
for (const id of ["show-density", "show-points"]) $(id).onchange = show;
$("sort").onchange = listed;
$("zoom-in").onclick = () => zoom(1.4);
$("zoom-out").onclick = () => zoom(1 / 1.4);
$("zoom-fit").onclick = fit;
$("undo").onclick = () => editor.undo();
$("redo").onclick = () => editor.redo();
$("reset").onclick = () => editor.set(state.current.seen, false); // they are the model's again
$("put-back").onclick = back;
$("retry").onclick = () => retry(state.current);
$("close-region").onclick = () => editor.closeRegion();
$("clear-region").onclick = () => {
  state.current.roi = state.current.region = null;
  refresh(state.current);
};
$("checked").onchange = (e) => {
  state.current.checked = e.target.checked;
  refresh(state.current);
};
$("keys").onclick = () => $("help").showModal();
$("help-close").onclick = () => $("help").close();
calibration(() => listed());

const kept = (some) => {
  for (const item of some) item.kept = item.dots;
  showDownloads();
};
$("get-counts").onclick = () => save("counts.csv", countsTable(counted()));
$("get-points").onclick = () => {
  save("points.csv", pointsTable(counted()));
  kept(counted());
};
$("get-regions").onclick = () => save("roi.json", JSON.stringify(Object.fromEntries(regions(counted()))) + "\n");
$("get-dots").onclick = () => {
  const files = dotsFiles(counted(), state.model.classes);
  if (files.length === 1) save(...files[0]);
  else save("dots.zip", zipped(files));
  kept(counted().filter((i) => i.checked));
};
canvas.addEventListener("focus", draw);
canvas.addEventListener("blur", draw);
new ResizeObserver(() => (state.view === whole ? fit() : draw())).observe(canvas);
showTools();
begin();
