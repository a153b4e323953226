// The image with its density, dots and region on the canvas. A view is {scale, x, y}: screen = image · scale + (x, y).

const PALETTE = ["#ffd60a", "#40c4ff", "#ff8a5c", "#5be39a", "#e59ac6", "#c9b6ff", "#d8d8d8", "#b5d33d"];
const OUTLINE = "#0c0c10";

export const toScreen = (view, [x, y]) => [x * view.scale + view.x, y * view.scale + view.y];
export const toImage = (view, x, y) => [(x - view.x) / view.scale, (y - view.y) / view.scale];

// The view that shows a whole image.
export function fitted(canvas, { width, height }) {
  canvas.style.setProperty("--ratio", width / height); // a phone's canvas is as high as the image
  const { clientWidth: w, clientHeight: h } = canvas;
  const scale = Math.min(w / width, h / height, 16);
  return { scale, x: (w - width * scale) / 2, y: (h - height * scale) / 2 };
}

// The view with another scale, in which the point (x, y) of the screen stays where it is.
export function zoomed(view, canvas, { width, height }, factor, x, y) {
  const least = Math.min(1, canvas.clientWidth / width / 2, canvas.clientHeight / height / 2);
  const scale = Math.min(64, Math.max(least, view.scale * factor)), by = scale / view.scale;
  return { scale, x: x - (x - view.x) * by, y: y - (y - view.y) * by };
}

export const colour = (label) => PALETTE[(label || 0) % PALETTE.length];

export function radius({ item, view }) { // of a dot on the screen: a share of the typical distance between neighbours
  const { width, height } = item.reply;
  const apart = Math.sqrt((width * height) / Math.max(4, item.dots.length));
  return Math.min(8, Math.max(2.2, apart * view.scale * 0.12));
}

export function paint(canvas, shown) {
  const { item, view } = shown, ctx = canvas.getContext("2d");
  const ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
  }
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, w, h);
  if (!item?.image || !item.reply) return;
  const { width, height, density } = item.reply;
  ctx.save();
  ctx.translate(view.x, view.y);
  ctx.scale(view.scale, view.scale);
  ctx.beginPath();
  ctx.rect(0, 0, width, height);
  ctx.clip();
  ctx.imageSmoothingEnabled = view.scale < 4;
  ctx.imageSmoothingQuality = "high";
  ctx.drawImage(item.image, 0, 0, width, height);
  if (shown.density && item.layer) {
    ctx.imageSmoothingEnabled = true;
    ctx.fillStyle = "rgb(40 40 46 / .35)"; // the photo steps back, so that colours mean density
    ctx.fillRect(0, 0, width, height);
    ctx.drawImage(item.layer, 0, 0, ...density.covers);
  }
  if (item.roi && !shown.draft.length) {
    const outside = new Path2D();
    outside.rect(0, 0, width, height);
    outline(outside, item.roi, true, (p) => p);
    ctx.fillStyle = "rgb(0 0 0 / .5)";
    ctx.fill(outside, "evenodd");
  }
  ctx.restore();
  if (shown.points) paintDots(ctx, shown, w, h);
  paintRegion(ctx, shown);
  if (shown.cursor) paintCursor(ctx, toScreen(view, shown.cursor));
}

function paintDots(ctx, shown, w, h) {
  const r = radius(shown) * (shown.density && shown.item.layer ? 0.6 : 1), rim = Math.max(0.8, r * 0.3), paths = new Map(), all = new Path2D(), own = new Path2D();
  for (const dot of shown.item.dots) {
    const [x, y] = toScreen(shown.view, [dot.x, dot.y]);
    if (x < -20 || y < -20 || x > w + 20 || y > h + 20) continue;
    const fill = colour(dot.label);
    if (!paths.has(fill)) paths.set(fill, new Path2D());
    for (const [path, size] of [[paths.get(fill), r], [all, r + rim], ...(dot.own || dot.moved ? [[own, r + rim + 1.5]] : [])]) {
      path.moveTo(x + size, y);
      path.arc(x, y, size, 0, 7);
    }
  }
  ctx.fillStyle = "#ffffff"; // a white ring: set by hand
  ctx.fill(own);
  ctx.fillStyle = OUTLINE;
  ctx.fill(all);
  for (const [fill, path] of paths) {
    ctx.fillStyle = fill;
    ctx.fill(path);
  }
  if (shown.hover) paintRing(ctx, toScreen(shown.view, [shown.hover.x, shown.hover.y]), r + rim + 4);
}

function paintRing(ctx, [x, y], r) { // around the dot that a key or a drag is about
  for (const [style, width] of [[OUTLINE, 4], ["#ffffff", 2]]) {
    ctx.strokeStyle = style;
    ctx.lineWidth = width;
    ctx.beginPath();
    ctx.arc(x, y, r, 0, 7);
    ctx.stroke();
  }
}

function outline(path, corners, closed, to) {
  corners.forEach((corner, k) => path[k ? "lineTo" : "moveTo"](...to(corner)));
  if (closed) path.closePath();
}

function paintRegion(ctx, { item, view, draft }) {
  const screen = (corner) => toScreen(view, corner);
  const corners = draft.length ? draft : item.roi;
  if (!corners) return;
  const path = new Path2D();
  outline(path, corners, !draft.length, screen);
  for (const [style, width] of [[OUTLINE, 4.5], ["#ffffff", 2]]) {
    ctx.strokeStyle = style;
    ctx.lineWidth = width;
    ctx.lineJoin = "round";
    ctx.stroke(path);
  }
  draft.forEach((corner, k) => {
    const [x, y] = screen(corner);
    ctx.beginPath();
    ctx.arc(x, y, k ? 4 : 7, 0, 7);
    ctx.fillStyle = k ? "#ffffff" : "#40c4ff";
    ctx.fill();
    ctx.strokeStyle = OUTLINE;
    ctx.lineWidth = 1.5;
    ctx.stroke();
  });
}

function paintCursor(ctx, [x, y]) {
  for (const [style, width] of [[OUTLINE, 4], ["#ffffff", 1.8]]) {
    ctx.strokeStyle = style;
    ctx.lineWidth = width;
    ctx.beginPath();
    for (const [a, b] of [[-14, -4], [4, 14]]) {
      ctx.moveTo(x + a, y);
      ctx.lineTo(x + b, y);
      ctx.moveTo(x, y + a);
      ctx.lineTo(x, y + b);
    }
    ctx.stroke();
  }
}
