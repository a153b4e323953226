// The keyboard: what a key does, by its name. Letters and digits are for the whole page, arrows and Enter for the image.

import { dotAt } from "./editing.js";
import { toImage, toScreen } from "./painting.js";
import { $, state } from "./state.js";

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function step(canvas, dx, dy) {
  const view = (state.view = { ...state.view });
  if (state.mode === "look") {
    view.x -= 4 * dx;
    view.y -= 4 * dy;
    return;
  }
  const { width, height } = state.current.reply;
  let [x, y] = toScreen(view, state.cursor || toImage(view, canvas.clientWidth / 2, canvas.clientHeight / 2));
  const [u, v] = toImage(view, x + dx, y + dy);
  state.cursor = [Math.min(width - 0.01, Math.max(0, u)), Math.min(height - 0.01, Math.max(0, v))];
  [x, y] = toScreen(view, state.cursor); // stays in sight
  view.x -= Math.min(0, x - 20) + Math.max(0, x - canvas.clientWidth + 20);
  view.y -= Math.min(0, y - 20) + Math.max(0, y - canvas.clientHeight + 20);
}

const cursor = () => (state.cursor ? toScreen(state.view, state.cursor) : []);
const aimed = () => (state.cursor ? dotAt(...cursor(), false) : state.hover); // the dot that a key is about

// Which class the digit keys mean: 1 is the first.
function digit(e) {
  const k = /^Digit[1-9]$/.test(e.code) ? Number(e.code.at(-1)) - 1 : -1;
  return k >= 0 && k < state.model.classes.length ? k : -1;
}

export function keys(canvas, editor, page) {
  const here = { // with the focus on the image
    Enter: () => state.cursor && editor.act(...cursor(), false),
    " ": () => state.cursor && editor.act(...cursor(), false),
    "+": () => page.zoom(1.4, ...cursor()),
    "=": () => page.zoom(1.4, ...cursor()),
    "-": () => page.zoom(1 / 1.4, ...cursor()),
    0: page.fit,
  };
  const erase = () => (aimed() ? editor.remove(aimed()) : false);
  const everywhere = {
    Delete: erase,
    Backspace: () => (erase() === false && state.mode !== "look" ? editor.undo() : true),
    c: () => $("checked").click(),
    d: () => $("show-density").click(),
    p: () => $("show-points").click(),
    n: () => page.next(1),
    b: () => page.next(-1),
    "?": () => $("help").showModal(),
    Escape: () => (editor.held ? editor.drop(false) : (state.draft = [])),
  };

  function command(e) { // with Ctrl or ⌘
    const key = e.key.toLowerCase();
    if (key === "z" && !e.shiftKey) return state.removed.length && (state.fresh || state.mode === "look") ? page.putBack : () => editor.undo();
    return key === "y" || (key === "z" && e.shiftKey) ? () => editor.redo() : null;
  }

  function meaning(e) {
    if (e.ctrlKey || e.metaKey) return command(e);
    if (e.altKey) return null;
    if (e.target === canvas && STEPS[e.key]) return () => step(canvas, ...STEPS[e.key].map((d) => d * (e.shiftKey ? 1 : 10)));
    if (e.target === canvas && here[e.key]) return here[e.key];
    if (digit(e) >= 0 && state.mode === "dots") return () => (e.shiftKey ? editor.classify(aimed(), digit(e)) : ($("class").value = String(digit(e))));
    return everywhere[e.key];
  }

  addEventListener("keydown", (e) => {
    if (!state.current?.reply && e.key !== "?" && !(state.removed.length && (e.ctrlKey || e.metaKey))) return;
    if (e.target.closest?.(e.ctrlKey || e.metaKey ? "dialog" : "select, dialog")) return; // they have keys of their own
    const does = meaning(e);
    if (!does) return;
    e.preventDefault();
    does();
    page.show();
  });
}
