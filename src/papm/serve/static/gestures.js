// Mouse, pen and fingers on the canvas: a drag pans, or moves the dot it begins on; the wheel and two fingers zoom; what stays
// in its place is a tap.

const STILL = { mouse: 4, pen: 6, touch: 9 }; // pixels that a tap may wander

export function gestures(canvas, { pan, zoom, tap, touched, grab, drag, drop, hover }) {
  const down = new Map(); // pointers by id, where they were last
  let travelled = 0, holding = false, last = "";

  const at = (x, y) => { // in pixels of the canvas
    const box = canvas.getBoundingClientRect();
    return [x - box.left - canvas.clientLeft, y - box.top - canvas.clientTop];
  };
  const still = (e) => travelled < (STILL[e.pointerType] || STILL.touch);
  const release = (kept) => {
    if (holding) drop(kept);
    holding = false;
  };

  canvas.addEventListener("pointerdown", (e) => {
    canvas.setPointerCapture(e.pointerId);
    if (!down.size) travelled = 0;
    down.set(e.pointerId, e);
    touched();
    release(false); // a second finger: it was no drag of a dot
    if (down.size === 1 && !e.button) holding = grab(...at(e.clientX, e.clientY), e.pointerType !== "mouse");
  });
  canvas.addEventListener("pointermove", (e) => {
    const before = down.get(e.pointerId), place = `${e.clientX} ${e.clientY}`;
    if (!before) {
      if (e.pointerType === "mouse" && place !== last) hover(...at(e.clientX, e.clientY));
      last = place; // browsers tell of a mouse that rests, too
      return;
    }
    const [dx, dy] = [e.clientX - before.clientX, e.clientY - before.clientY];
    const other = [...down.values()].find((p) => p.pointerId !== e.pointerId);
    down.set(e.pointerId, e);
    travelled += Math.hypot(dx, dy) + (other ? 100 : 0); // two fingers are never a tap
    if (still(e)) return;
    canvas.classList.add("dragging");
    if (holding) return drag(...at(e.clientX, e.clientY));
    if (!other) return pan(dx, dy);
    const apart = (p) => Math.hypot(p.clientX - other.clientX, p.clientY - other.clientY);
    pan(dx / 2, dy / 2); // the point between the fingers moves half as far as one of them
    zoom(apart(e) / Math.max(1, apart(before)), ...at((e.clientX + other.clientX) / 2, (e.clientY + other.clientY) / 2));
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, (e) => {
      const known = down.delete(e.pointerId);
      canvas.classList.remove("dragging");
      const tapped = kind === "pointerup" && known && !down.size && !e.button && still(e);
      release(kind === "pointerup" && !still(e));
      if (tapped) tap(...at(e.clientX, e.clientY), e.pointerType !== "mouse");
    });
  }
  canvas.addEventListener("pointerleave", () => {
    last = "";
    hover(null);
  });
  canvas.addEventListener("mousedown", (e) => e.button === 1 && e.preventDefault()); // the middle one pans, and starts no scrolling
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    zoom(Math.exp(-e.deltaY * (e.deltaMode ? 0.05 : 0.0016)), ...at(e.clientX, e.clientY));
  }, { passive: false });
}
