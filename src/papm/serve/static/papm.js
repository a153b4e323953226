// The page of `papm serve`: images go to /api/count one after the other; dots, regions and downloads are made here.

import { Saved } from "./dots.js";
import { countsTable, dotsFiles, inRegion, pointsTable, regions, save, unused, zipped } from "./files.js";
import { gestures } from "./gestures.js";
import { fitted, paint, radius, toImage, toScreen, zoomed } from "./painting.js";
import { decoded, dropped, post, thumbnail } from "./sending.js";
import { number, showClasses, showModels } from "./tables.js";

const $ = (id) => document.getElementById(id);
const canvas = $("canvas");

const saved = new Saved();
const items = []; // every image: {file, name, state, reply, dots, past, kept (the dots last downloaded), roi, region, checked, …}
let model = { max_bytes: Infinity, classes: [] };
let current = null, mode = "look", draft = [];
let view = { scale: 1, x: 0, y: 0 }; // screen = image · scale + (x, y), in CSS pixels
const screen = (xy) => toScreen(view, xy), place = (x, y) => toImage(view, x, y);
let cursor = null; // of the keyboard, in image pixels
const counted = () => items.filter((i) => i.state === "done");
const unsaved = (item) => item.state === "done" && item.dots !== item.kept; // every change makes a new list of dots

// --- talking to the server ---------------------------------------------------------------------------------------------

async function begin() {
  try {
    model = await (await fetch("api/model")).json();
  } catch {
    $("status").textContent = "No answer from papm serve.";
    return;
  }
  document.title = `${model.name} · papm`;
  document.body.classList.toggle("alone", alone());
  if (alone()) document.querySelector("input[value=dots]").click();
  const about = [model.name, model.method, model.backbone, model.trained_on && `trained on ${model.trained_on}`, model.steps && `${model.steps} steps`];
  $("about").textContent = about.filter(Boolean).join(" · ");
  for (const [k, name] of model.classes.entries()) $("class").append(new Option(name, k));
  $("show-density").closest("label").hidden = model.counts !== "density"; // a point network has no map
  const here = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  $("promise").textContent = here ? "They stay on this machine; papm keeps none of them." : `They are sent to ${location.hostname}, where papm keeps none of them.`;
}

const natural = new Intl.Collator("en", { numeric: true }).compare; // IMG_2 before IMG_10

async function add(files) {
  const images = await saved.read(files);
  for (const file of images.sort((a, b) => natural(a.name, b.name))) {
    items.push({ file, name: unused(file.name || "image", items), state: "waiting", dots: [], past: [], roi: null, region: null, checked: false });
  }
  for (const item of items) saved.give(item, model.classes.length);
  refresh(current || {});
  if (!items.length) return;
  document.body.classList.add("used");
  $("work").hidden = false;
  if (!current) select(items[0]);
  showList();
  pump();
}

let pumping = false;
async function pump() {
  if (pumping) return;
  pumping = true;
  for (let item; (item = items.find((i) => i.state === "waiting")); ) {
    item.state = "counting";
    item.stop = new AbortController();
    refresh(item);
    try {
      if (item.file.size > model.max_bytes) throw new Error(`${item.name}: larger than ${Math.round(model.max_bytes / 1e6)} MB, the most that is taken`);
      item.reply = await (await post("api/count", { image: item.file }, item.stop.signal)).json();
      item.dots = item.kept = item.seen = item.reply.points.map((p) => ({ ...p, own: false }));
      item.state = "done";
      saved.give(item, model.classes.length);
    } catch (error) {
      item.state = "failed";
      item.fault = error.message;
    }
    await open(item).catch((error) => (item.fault = error.message));
    if (item !== current) item.image = null;
    refresh(item);
  }
  pumping = false;
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

// --- the list and the figures ------------------------------------------------------------------------------------------

const alone = () => model.counts === "none"; // no model: what is counted is the dots

function recount(item) {
  if (!alone() || !item.reply) return;
  item.reply.count = item.dots.length;
  item.reply.classes?.forEach((kind, k) => (kind.count = item.dots.filter((d) => (d.label || 0) === k).length));
  if (item.roi) item.region = { count: inRegion(item) };
}

function showList() {
  $("images").replaceChildren(...items.map((item) => {
    const row = document.createElement("li");
    item.button = document.createElement("button");
    item.button.type = "button";
    item.button.className = "item";
    item.button.onclick = () => select(item);
    const gone = document.createElement("button");
    gone.type = "button";
    gone.className = "gone";
    gone.textContent = "×";
    gone.setAttribute("aria-label", `Remove ${item.name}`);
    gone.onclick = () => remove(item);
    row.append(item.button, gone);
    showRow(item);
    return row;
  }));
}

function showRow(item) {
  const name = document.createElement("span"), value = document.createElement("span");
  name.className = "name";
  name.textContent = item.name;
  value.className = { done: "value", failed: "value bad" }[item.state] || "value wait";
  value.textContent = { waiting: "waiting", counting: "counting…", failed: "not counted" }[item.state] || number(item.reply.count);
  if (item.checked) value.textContent += alone() ? " ✓" : ` → ${item.dots.length}`;
  item.button.replaceChildren(item.thumb || document.createElement("canvas"), name, value);
  item.button.title = item.name;
  item.button.setAttribute("aria-current", item === current);
}

function refresh(item) {
  recount(item);
  if (item.button) showRow(item);
  const done = counted(), failed = items.filter((i) => i.state === "failed").length;
  const left = items.length - done.length - failed;
  const total = number(done.reduce((sum, i) => sum + i.reply.count, 0));
  const parts = [`${done.length} of ${items.length} image${items.length > 1 ? "s" : ""} ${alone() ? "open" : "counted"}`, done.length > 1 && `${total} in all`, failed && `${failed} not counted`, left && "counting…"];
  $("status").textContent = [...(items.length ? parts : []), saved.note].filter(Boolean).join(" · ");
  if (item === current) {
    if (item.image && !item.fitted) fit();
    showFigures();
  }
}

function showFigures() {
  const item = current, done = item?.state === "done";
  $("name").textContent = item ? item.name : "";
  $("fault").hidden = !item?.fault;
  $("fault").textContent = item?.fault || "";
  $("count").textContent = done ? number(item.reply.count) : item?.state === "failed" ? "–" : "…";
  $("count-note").textContent = done ? [`${item.reply.width} × ${item.reply.height} pixels`, item.reply.warning].filter(Boolean).join("; ") : "";
  $("dots").textContent = done ? number(item.dots.length) : "–";
  const added = done ? item.dots.filter((d) => d.own).length : 0;
  const removed = done ? item.reply.points.length - (item.dots.length - added) : 0;
  $("dots-note").textContent = alone() ? "" : added || removed ? `${added} added, ${removed} removed by hand` : done ? "the model’s points" : "";
  $("in-region").hidden = !item?.roi;
  if (item?.roi) {
    const inside = inRegion(item), dots = `${inside} dot${inside === 1 ? "" : "s"}`;
    $("region").textContent = item.region?.count === undefined ? "…" : number(item.region.count);
    $("region-note").textContent = item.region?.fault || (alone() ? "" : `model’s count; ${dots}`);
  }
  showClasses($("classes"), (done && item.reply.classes) || [], item);
  showModels($("models"), (done && item.reply.models) || []);
  $("checked").checked = Boolean(item?.checked);
  $("checked").disabled = !done;
  showTools();
  draw();
}

const HINTS = {
  look: "Drag to move, scroll or pinch to zoom.",
  dots: "Click to add a dot; click a dot to remove it.",
  region: "Click the corners; click the first one again to close the region.",
};

function showTools() {
  const done = current?.state === "done", item = current;
  $("hint").textContent = HINTS[mode];
  $("class").hidden = mode !== "dots" || model.classes.length < 2;
  $("undo").hidden = mode === "look";
  $("undo").disabled = !done || !(mode === "region" ? draft.length : item.past.length);
  $("reset").hidden = mode !== "dots";
  $("reset").disabled = !done || !item.past.length;
  $("close-region").hidden = mode !== "region" || Boolean(item?.roi && !draft.length);
  $("close-region").disabled = draft.length < 3;
  $("clear-region").hidden = mode !== "region" || !item?.roi;
  canvas.className = mode;
  const checked = counted().filter((i) => i.checked).length, open = counted().filter((i) => unsaved(i) && !i.checked).length;
  for (const id of ["get-counts", "get-points"]) $(id).disabled = !counted().length;
  $("get-dots").disabled = !checked;
  $("get-regions").hidden = !regions(counted()).length;
  $("get-dots").textContent = checked > 1 ? `Checked dots (${checked})` : "Checked dots";
  const left = open && `${open} image${open > 1 ? "s" : ""} with changed dots ${open > 1 ? "are" : "is"} not ticked as checked and left out.`;
  const help = checked ? "Put each NAME.txt beside its image: papm train reads them." : `${alone() ? "Mark" : "Correct"} the dots of an image and tick it as checked to download them for papm train.`;
  $("dots-help").textContent = [help, left].filter(Boolean).join(" ");
}

async function select(item) {
  if (current && current !== item) current.image = null; // one decoded photo at a time
  current = item;
  draft = [];
  cursor = null;
  for (const i of items) i.button?.setAttribute("aria-current", i === item);
  showFigures();
  if (!item) return;
  try {
    await open(item);
  } catch (error) {
    item.fault = error.message;
  }
  if (item !== current) return;
  fit();
  showFigures();
}

function remove(item) {
  if (unsaved(item) && !confirm(`The changed dots of ${item.name} are not downloaded. Remove the image and lose them?`)) return;
  const at = items.indexOf(item);
  item.stop?.abort();
  items.splice(at, 1);
  if (item === current) select(items[Math.min(at, items.length - 1)] || null);
  showList();
  $("work").hidden = !items.length;
  document.body.classList.toggle("used", items.length > 0);
  refresh(current || {});
  (current?.button || $("files")).focus();
}

// --- drawing -----------------------------------------------------------------------------------------------------------

function fit() {
  if (!current?.reply) return;
  view = fitted(canvas, current.reply);
  current.fitted = true;
  draw();
}

function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  if (!current?.reply) return;
  view = zoomed(view, canvas, current.reply, factor, x, y);
  draw();
}

let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    paint(canvas, {
      item: current, view, draft,
      density: $("show-density").checked,
      points: $("show-points").checked || mode === "dots",
      cursor: document.activeElement === canvas && mode !== "look" && cursor,
    });
  });
}

// --- dots and regions --------------------------------------------------------------------------------------------------

function act(x, y, coarse) {
  if (current?.state !== "done" || mode === "look") return;
  const { width, height } = current.reply;
  const at = place(x, y), outside = at[0] < 0 || at[1] < 0 || at[0] >= width || at[1] >= height;
  if (mode === "dots" && !outside) changeDot(x, y, at, coarse ? 15 : 7);
  if (mode === "region") {
    const first = draft.length > 2 && screen(draft[0]);
    if (first && Math.hypot(first[0] - x, first[1] - y) < (coarse ? 22 : 11)) return closeRegion();
    draft.push([Math.min(width, Math.max(0, at[0])), Math.min(height, Math.max(0, at[1]))]);
    showFigures();
  }
}

function changeDot(x, y, at, reach) {
  let nearest = -1, least = Math.max(reach, radius({ item: current, view }) + 2);
  current.dots.forEach((dot, k) => {
    const [u, v] = screen([dot.x, dot.y]), far = Math.hypot(u - x, v - y);
    if (far < least) [nearest, least] = [k, far];
  });
  current.past.push(current.dots);
  if (nearest >= 0) {
    current.dots = current.dots.filter((_, k) => k !== nearest);
  } else {
    const dot = { x: at[0], y: at[1], own: true };
    if (model.classes.length > 1) dot.label = Number($("class").value);
    current.dots = [...current.dots, dot];
  }
  refresh(current); // whether they are checked only the person says
}

function undo() {
  if (mode === "region" && draft.length) draft.pop();
  else if (current?.past.length) current.dots = current.past.pop();
  if (current) refresh(current);
}

async function closeRegion() {
  if (draft.length < 3) return;
  const item = current, roi = draft.map((corner) => corner.map((v) => Math.round(v * 100) / 100));
  draft = [];
  item.roi = roi;
  item.region = {};
  refresh(item);
  if (alone()) return;
  try {
    const made = await (await post("api/count", { image: item.file, roi: JSON.stringify(roi), density: "none" })).json();
    if (item.roi === roi) item.region = made;
  } catch (error) {
    if (item.roi === roi) item.region = { fault: error.message };
  }
  if (item === current) showFigures();
}

// --- pointer and keys --------------------------------------------------------------------------------------------------

gestures(canvas, {
  pan(dx, dy) {
    view.x += dx;
    view.y += dy;
    draw();
  },
  zoom,
  tap: act,
  touched: () => (cursor = null),
});

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function step(dx, dy) {
  if (mode === "look") {
    view.x -= 4 * dx;
    view.y -= 4 * dy;
    return;
  }
  const { width, height } = current.reply;
  let [x, y] = screen(cursor || place(canvas.clientWidth / 2, canvas.clientHeight / 2));
  [x, y] = [x + dx, y + dy];
  const [u, v] = place(x, y);
  cursor = [Math.min(width - 0.01, Math.max(0, u)), Math.min(height - 0.01, Math.max(0, v))];
  [x, y] = screen(cursor); // stays in sight
  view.x -= Math.min(0, x - 20) + Math.max(0, x - canvas.clientWidth + 20);
  view.y -= Math.min(0, y - 20) + Math.max(0, y - canvas.clientHeight + 20);
}

canvas.addEventListener("keydown", (e) => {
  if (!current?.reply) return;
  if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "z") undo();
  else if (e.ctrlKey || e.metaKey || e.altKey) return;
  else if (STEPS[e.key]) step(...STEPS[e.key].map((d) => d * (e.shiftKey ? 1 : 10)));
  else if ((e.key === "Enter" || e.key === " ") && cursor) act(...screen(cursor), false);
  else if (e.key === "+" || e.key === "=") zoom(1.4, ...(cursor ? screen(cursor) : []));
  else if (e.key === "-") zoom(1 / 1.4, ...(cursor ? screen(cursor) : []));
  else if (e.key === "0") fit();
  else if (e.key === "d") $("show-density").click();
  else if (e.key === "p") $("show-points").click();
  else if (e.key === "c") $("checked").click();
  else if (e.key === "Backspace") undo();
  else if (e.key === "Escape") draft = [];
  else return;
  e.preventDefault();
  showTools();
  draw();
});

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
addEventListener("beforeunload", (e) => items.some(unsaved) && e.preventDefault());
for (const radio of document.querySelectorAll("input[name=mode]")) {
  radio.onchange = () => {
    mode = radio.value;
    draft = [];
    if (mode === "dots") $("show-points").checked = true;
    showFigures();
  };
}
for (const id of ["show-density", "show-points"]) $(id).onchange = draw;
$("zoom-in").onclick = () => zoom(1.4);
$("zoom-out").onclick = () => zoom(1 / 1.4);
$("zoom-fit").onclick = fit;
$("undo").onclick = undo;
$("reset").onclick = () => {
  current.past.push(current.dots);
  current.dots = current.seen;
  current.checked = false; // they are the model's again
  refresh(current);
};
$("close-region").onclick = closeRegion;
$("clear-region").onclick = () => {
  current.roi = current.region = null;
  showFigures();
};
$("checked").onchange = (e) => {
  current.checked = e.target.checked;
  refresh(current);
};
$("get-counts").onclick = () => save("counts.csv", countsTable(counted()));
const kept = (some) => {
  for (const item of some) item.kept = item.dots;
  showTools();
};
$("get-points").onclick = () => {
  save("points.csv", pointsTable(counted()));
  kept(counted());
};
$("get-regions").onclick = () => save("roi.json", JSON.stringify(Object.fromEntries(regions(counted()))) + "\n");
$("get-dots").onclick = () => {
  const files = dotsFiles(counted(), model.classes);
  if (files.length === 1) save(...files[0]);
  else save("dots.zip", zipped(files));
  kept(counted().filter((i) => i.checked));
};
canvas.addEventListener("focus", draw);
canvas.addEventListener("blur", draw);
new ResizeObserver(draw).observe(canvas);
showTools();
begin();
