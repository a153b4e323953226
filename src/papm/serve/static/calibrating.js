// A factor for the counts, from the images that the person checked: asked for, looked at, and then used or not.

import { $, alone, counted, some, state } from "./state.js";

const FEWEST = 5; // as `papm calibrate`
let offer = null; // what the server found, and from which dots
let fault = "", refused = [], busy = false; // why it was refused, and for which dots

const checked = () => counted().filter((i) => i.checked);
const raw = (item) => Math.max(0, item.reply.raw_count ?? item.reply.count);
const three = (v) => v.toPrecision(3);
const about = (c) => `Factor ${three(c.scale)} (95 % ${three(c.low)} to ${three(c.high)}) from ${some(c.images, "image")}. Mean error of a count, each image with the factor of the others: ${three(c.mae_after)}; without it ${three(c.mae_before)}.`;
const same = (a, b) => a.length === b.length && a.every((i, k) => i === b[k].item && i.dots === b[k].dots);

export function showCalibration() {
  const { model } = state, used = model.calibration, ready = checked();
  if (offer && !same(ready, offer.from)) offer = null; // it was of other dots
  if (fault && !same(ready, refused)) fault = "";
  $("calibration").hidden = alone() || !model.name || model.models?.length > 1;
  const missing = FEWEST - ready.length, may = model.may_calibrate !== "no";
  $("calibrate").hidden = !may || Boolean(offer);
  $("calibrate").disabled = missing > 0 || busy;
  $("calibrate").textContent = missing > 0 ? "Calibrate" : `Calibrate (${ready.length} images)`;
  for (const id of ["calibration-use", "calibration-not"]) $(id).hidden = !offer;
  $("calibration-store").hidden = !offer || model.may_calibrate !== "store";
  $("calibration-off").hidden = !used || model.own_calibration || Boolean(offer);
  $("calibration-fault").hidden = !fault;
  $("calibration-fault").textContent = fault;
  const now = used ? `Counts are calibrated. ${about(used)}` : "Counts are as the model gives them.";
  const how = missing > 0 ? `Tick ${FEWEST} images or more as checked, which the model has not seen in training (${missing} to go), to fit a factor for its counts.` : "";
  $("calibration-text").textContent = offer ? [about(offer.calibration), offer.note].filter(Boolean).join(" ") : [now, may ? how : model.why_not].filter(Boolean).join(" ");
}

async function ask(then) {
  const from = checked().map((item) => ({ item, dots: item.dots }));
  const images = from.map(({ item, dots }) => ({ name: item.name, ...item.reply.file, counted: raw(item), truth: dots.length }));
  [busy, fault, refused] = [true, "", from];
  showCalibration();
  try {
    const response = await fetch("api/calibrate", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ then, images }) });
    const made = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(made.error || `the server answered ${response.status}`);
    return { ...made, from };
  } catch (error) {
    fault = error instanceof TypeError ? "no answer: is papm serve still running?" : error.message;
    return null;
  } finally {
    busy = false;
  }
}

// What was counted, by the factor of now, whichever it was counted with: counts and maps change alike, points stay.
export function rescale(item) {
  if (state.model.models?.length > 1) return; // each has a factor of its own
  const scale = state.model.calibration?.scale ?? null;
  for (const reply of [item.reply, item.region]) {
    if (reply?.count === undefined) continue;
    const had = reply.raw_count === undefined ? null : reply.count / (reply.raw_count || 1);
    if (had === scale || Math.abs(had / scale - 1) < 1e-9) continue;
    const before = reply.raw_count ?? reply.count, ratio = before ? (scale ?? 1) * (before / reply.count) : 1;
    [reply.count, reply.raw_count, reply.interval] = [before * (scale ?? 1), scale === null ? undefined : before, undefined];
    for (const kind of reply.classes || []) kind.count *= ratio;
    if (reply.density) reply.density.full *= ratio;
  }
}

export function calibration(changed) {
  function use(made) {
    if (!made) return changed();
    offer = null;
    state.model.calibration = made.calibration;
    for (const item of [...state.items, ...state.removed.map((r) => r.item)]) rescale(item);
    $("calibration-said").textContent = made.stored ? `Stored in ${made.stored}.` : "";
    changed();
  }
  $("calibrate").onclick = async () => {
    offer = await ask("show");
    $("calibration-said").textContent = "";
    changed();
    if (offer) $("calibration-use").focus();
  };
  for (const [id, then] of [["calibration-use", "use"], ["calibration-store", "store"]]) {
    $(id).onclick = async () => {
      const made = await ask(then);
      if (made) state.model.own_calibration = false;
      use(made);
    };
  }
  $("calibration-off").onclick = async () => {
    const made = await ask("off");
    if (made) state.model.own_calibration = true;
    use(made);
  };
  $("calibration-not").onclick = () => {
    offer = null;
    changed();
    $("calibrate").focus();
  };
}
