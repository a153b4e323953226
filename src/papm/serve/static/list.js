// The list of images: their order, what each row says, taking one out and putting it back.

import { spread } from "./files.js";
import { $, alone, counted, some, state } from "./state.js";
import { number } from "./tables.js";

const natural = new Intl.Collator("en", { numeric: true }).compare; // IMG_2 before IMG_10
export const byName = (a, b) => natural(a.name, b.name);
const ORDERS = {
  added: () => 0,
  name: byName,
  count: (a, b) => (b.reply?.count ?? -1) - (a.reply?.count ?? -1),
  spread: (a, b) => spread(b.reply?.models) - spread(a.reply?.models),
};

export const ordered = () => [...state.items].sort(ORDERS[$("sort").value]);

function button(kind, text, label, click) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = kind;
  made.textContent = text;
  if (label) made.setAttribute("aria-label", label);
  made.onclick = click;
  return made;
}

function span(kind, text) {
  const made = document.createElement("span");
  made.className = kind;
  made.textContent = text;
  return made;
}

function rowOf(item, { select, remove, retry }) {
  const row = document.createElement("li");
  item.button = button("item", "", "", () => select(item));
  item.again = button("again", "Try again", `Count ${item.name} again`, () => retry(item));
  row.append(item.button, button("gone", "×", `Remove ${item.name}`, () => remove(item)), item.again);
  return row;
}

// Rows stay what they are, so that the focus does; only their order changes.
export function showList(act) {
  const rows = ordered().map((item) => (item.row ??= rowOf(item, act)));
  if (rows.length !== $("images").children.length || rows.some((row, k) => row !== $("images").children[k])) {
    const focused = document.activeElement;
    $("images").replaceChildren(...rows);
    if (focused !== document.activeElement) focused?.focus();
  }
  for (const item of state.items) showRow(item);
}

export function showRow(item) {
  if (!item.button) return;
  const failed = item.state === "failed", apart = spread(item.reply?.models);
  let text = { waiting: "waiting", counting: "counting…", failed: "not counted" }[item.state] || number(item.reply.count);
  if (item.checked) text += alone() ? " ✓" : ` → ${item.dots.length}`;
  const parts = [item.thumb || document.createElement("canvas"), span("name", item.name)];
  parts.push(span({ done: "value", failed: "value bad" }[item.state] || "value wait", text));
  if (failed && item.fault) parts.push(span("why", item.fault));
  if (apart >= 0) parts.push(span("why", `models ${Math.round(100 * apart)} % apart`));
  item.button.replaceChildren(...parts);
  item.button.title = item.name;
  item.button.setAttribute("aria-current", item === state.current);
  item.again.hidden = !failed;
}

export function showStatus(note) {
  const { items } = state, done = counted(), failed = items.filter((i) => i.state === "failed").length;
  const left = items.length - done.length - failed;
  const total = number(done.reduce((sum, i) => sum + i.reply.count, 0));
  const parts = [`${done.length} of ${some(items.length, "image")} ${alone() ? "open" : "counted"}`, done.length > 1 && `${total} in all`, failed && `${failed} not counted`, left && "counting…"];
  $("status").textContent = [...(items.length ? parts : []), note].filter(Boolean).join(" · ");
  const last = state.removed.at(-1);
  $("removed").hidden = !last;
  $("removed-name").textContent = last ? `${last.item.name} was removed.` : "";
}

export function takeOut(item) { // and say which one comes next
  const rows = ordered(), at = rows.indexOf(item);
  item.stop?.abort();
  state.removed.push({ item, at: state.items.indexOf(item) });
  state.items.splice(state.items.indexOf(item), 1);
  state.fresh = true;
  return rows[at + 1] || rows[at - 1] || null;
}

export function putBack(free) { // `free` gives a name that no other image has
  const { item, at } = state.removed.pop();
  item.name = free(item.name, state.items);
  item.row = null;
  if (item.state !== "done") item.state = "waiting";
  state.items.splice(Math.min(at, state.items.length), 0, item);
  return item;
}
