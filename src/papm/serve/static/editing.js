// Dots and regions of the image that is shown: what a click, a drag and a key do to them.

import { rescale } from "./calibrating.js";
import { change, redo, undo } from "./history.js";
import { radius, toImage, toScreen } from "./painting.js";
import { $, alone, state } from "./state.js";
import { post } from "./sending.js";

const REACH = { fine: 7, coarse: 15 }; // pixels of the screen around a dot: a mouse, a finger
const screen = (xy) => toScreen(state.view, xy);
const editable = () => state.current?.state === "done" && state.mode === "dots";

// The dot at a place of the screen, or the nearest one within reach.
export function dotAt(x, y, coarse) {
  if (!editable()) return null;
  const item = state.current;
  let nearest = null, least = Math.max(coarse ? REACH.coarse : REACH.fine, radius({ item, view: state.view }) + 2);
  for (const dot of item.dots) {
    const [u, v] = screen([dot.x, dot.y]), far = Math.hypot(u - x, v - y);
    if (far < least) [nearest, least] = [dot, far];
  }
  return nearest;
}

function within([x, y]) { // the nearest place of the image
  const { width, height } = state.current.reply, edge = 0.01;
  return [Math.min(width - edge, Math.max(0, x)), Math.min(height - edge, Math.max(0, y))];
}

export class Editor {
  constructor(changed) {
    this.changed = changed; // is called after every change, with the image
    this.held = null; // the dot that is dragged, the list it was in, and where it was taken
  }

  act(x, y, coarse) { // a click
    const { current: item, mode } = state;
    if (item?.state !== "done" || mode === "look") return;
    const at = toImage(state.view, x, y), { width, height } = item.reply;
    if (mode === "dots") {
      const there = dotAt(x, y, coarse), outside = at[0] < 0 || at[1] < 0 || at[0] >= width || at[1] >= height;
      if (there) this.remove(there);
      else if (!outside) this.add(at);
      return;
    }
    const first = state.draft.length > 2 && screen(state.draft[0]);
    if (first && Math.hypot(first[0] - x, first[1] - y) < (coarse ? 22 : 11)) return void this.closeRegion();
    state.draft.push([Math.min(width, Math.max(0, at[0])), Math.min(height, Math.max(0, at[1]))]);
    this.changed(item);
  }

  add([x, y]) {
    const dot = { x, y, own: true };
    if (state.model.classes.length > 1) dot.label = Number($("class").value);
    this.set([...state.current.dots, dot]);
  }

  remove(dot) {
    if (dot && editable() && !this.held) this.set(state.current.dots.filter((d) => d !== dot));
  }

  classify(dot, label) {
    if (dot && editable() && !this.held && dot.label !== label) this.replace(dot, { ...dot, label });
  }

  replace(dot, other) {
    this.set(state.current.dots.map((d) => (d === dot ? other : d)));
    state.hover = other;
  }

  set(dots, checked) { // whether they are checked only the person says
    change(state.current, dots, checked);
    state.fresh = false;
    this.changed(state.current);
  }

  // A drag that begins on a dot moves it. Until it ends nothing is written into the history.
  grab(x, y, coarse) {
    const dot = dotAt(x, y, coarse);
    if (!dot) return false;
    const [u, v] = screen([dot.x, dot.y]);
    this.held = { item: state.current, dots: state.current.dots, dot, off: [u - x, v - y] };
    return true;
  }

  drag(x, y) {
    if (!this.held) return;
    const { item, dots, dot, off } = this.held, { score, ...rest } = dot; // the model's score was of another place
    const [u, v] = within(toImage(state.view, x + off[0], y + off[1]));
    const moved = { ...rest, x: u, y: v, ...(dot.own ? {} : { moved: true }) };
    state.hover = moved;
    item.dots = dots.map((d) => (d === dot ? moved : d));
    this.changed(item);
  }

  drop(kept) {
    if (!this.held) return;
    const { item, dots } = this.held, moved = item.dots;
    this.held = null;
    item.dots = dots;
    if (kept && moved !== dots) change(item, moved);
    this.changed(item);
  }

  undo() {
    if (!state.current || this.held) return;
    if (state.mode === "region") state.draft.pop();
    else undo(state.current);
    this.changed(state.current);
  }

  redo() {
    if (!state.current || this.held || state.mode === "region") return;
    redo(state.current);
    this.changed(state.current);
  }

  async closeRegion() {
    if (state.draft.length < 3) return;
    const item = state.current;
    item.roi = state.draft.map((corner) => corner.map((v) => Math.round(v * 100) / 100));
    item.region = {};
    state.draft = [];
    await this.countRegion(item);
  }

  async countRegion(item) {
    const roi = item.roi;
    this.changed(item);
    if (alone()) return;
    let found;
    try {
      found = await (await post("api/count", { image: item.file, roi: JSON.stringify(roi), density: "none" })).json();
    } catch (error) {
      found = { fault: error.message };
    }
    if (item.roi !== roi) return;
    item.region = found;
    rescale(item);
    this.changed(item);
  }
}
