// What was done to the dots of an image, backward and forward. A step also says whether the dots were ticked as checked then.

const MOST = 300; // steps back

const now = ({ dots, checked }) => ({ dots, checked });

export function change(item, dots, checked = item.checked) {
  item.past = [...item.past.slice(1 - MOST), now(item)];
  item.future = [];
  Object.assign(item, { dots, checked });
}

export function undo(item) {
  if (!item.past.length) return;
  item.future.push(now(item));
  Object.assign(item, item.past.pop());
}

export function redo(item) {
  if (!item.future.length) return;
  item.past.push(now(item));
  Object.assign(item, item.future.pop());
}
