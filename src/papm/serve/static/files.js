// What the page gives to download: tables, dots that `papm train` reads, regions, and a ZIP of several files.

// An apostrophe before names that a spreadsheet would take for a formula, as `papm.files.guarded` has it.
const guarded = (v) => (typeof v === "string" && /^'*[=+\-@\t\r\n]/.test(v) && !Number.isFinite(Number(v)) ? `'${v}` : String(v));
const cell = (v) => (/[",\r\n]/.test(guarded(v)) ? `"${guarded(v).replaceAll('"', '""')}"` : guarded(v));
const table = (rows) => rows.map((row) => row.map(cell).join(",") + "\n").join("");
const rounded = (v) => Math.round(v * 1e4) / 1e4;
const inside = (v, length) => Math.min(Math.round(v * 100) / 100, Math.round((length - 0.01) * 100) / 100);

export function split(name) {
  const dot = name.lastIndexOf(".");
  return dot > 0 ? [name.slice(0, dot), name.slice(dot)] : [name, ""];
}

// A name for another image: NAME.txt must tell images apart.
export function unused(name, items) {
  const [stem, suffix] = split(name);
  const taken = new Set(items.map((i) => split(i.name)[0].toLowerCase()));
  let made = stem;
  for (let k = 2; taken.has(made.toLowerCase()); k++) made = `${stem}-${k}`;
  return made + suffix;
}

// As papm counts a region: a dot belongs to it when the centre of its pixel does, even-odd.
function within(dot, corners) {
  const x = Math.floor(dot.x) + 0.5, y = Math.floor(dot.y) + 0.5;
  let inside = false;
  corners.forEach(([x1, y1], k) => {
    const [x2, y2] = corners[(k + 1) % corners.length];
    if (y1 > y !== y2 > y && x >= x1 + ((y - y1) * (x2 - x1)) / (y2 - y1)) inside = !inside;
  });
  return inside;
}

export const dotsInside = (item, corners = item.roi) => item.dots.filter((d) => within(d, corners)).length;

export function countsTable(items) {
  const kinds = items[0].reply.classes || [], models = items[0].reply.models || [];
  const raw = items.some((i) => i.reply.raw_count !== undefined), drawn = items.some((i) => i.region?.count !== undefined);
  const head = [
    "image", "count", ...(raw ? ["raw_count"] : []), ...kinds.map((k) => `count_${k.name}`), ...models.map((m) => `by_${m.name}`),
    ...(models.length > 1 ? ["spread"] : []), "checked_dots", ...(drawn ? ["count_in_region", "dots_in_region"] : []),
  ];
  return table([head, ...items.map((i) => [
    i.name, rounded(i.reply.count), ...(raw ? [rounded(i.reply.raw_count ?? i.reply.count)] : []),
    ...kinds.map((_, k) => rounded(i.reply.classes[k].count)), ...models.map((_, k) => rounded(i.reply.models[k].count)),
    ...(models.length > 1 ? [rounded(spread(i.reply.models))] : []), i.checked ? i.dots.length : "",
    ...(drawn ? (i.region?.count === undefined ? ["", ""] : [rounded(i.region.count), dotsInside(i)]) : []),
  ])]);
}

// How far models are apart: (largest − least count) / their mean; -1 where there are not several.
export function spread(models) {
  if (!models || models.length < 2) return -1;
  const counts = models.map((m) => m.count), mean = counts.reduce((a, b) => a + b, 0) / counts.length;
  return (Math.max(...counts) - Math.min(...counts)) / Math.max(mean, 1);
}

export function pointsTable(items) {
  const rows = items.flatMap((i) => i.dots.map((d) => [
    i.name, inside(d.x, i.reply.width), inside(d.y, i.reply.height), d.score === undefined ? "" : rounded(d.score), d.label ?? "",
  ]));
  return table([["image", "x", "y", "score", "label"], ...rows]);
}

function dotsText(item) {
  const kinds = (item.reply.classes || []).length > 1;
  const lines = item.dots.map((d) => `${inside(d.x, item.reply.width)} ${inside(d.y, item.reply.height)}${kinds ? ` ${d.label || 0}` : ""}`);
  return [kinds ? "# x y label" : "# x y", ...lines].join("\n") + "\n";
}

export function dotsFiles(items, classes) {
  const checked = items.filter((i) => i.checked);
  const files = checked.map((i) => [`${split(i.name)[0]}.txt`, dotsText(i)]);
  if (classes.length > 1) files.push(["classes.txt", classes.join("\n") + "\n"]);
  return files;
}

export const regions = (items) => items.filter((i) => i.roi).map((i) => [i.name, [i.roi]]);

export function save(name, content) {
  const link = document.createElement("a"), url = URL.createObjectURL(new Blob([content]));
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function crc32(bytes) {
  let crc = ~0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let k = 0; k < 8; k++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}

// A ZIP of stored (not compressed) files: local headers and contents, then the directory, then where it is.
export function zipped(files) {
  const encoder = new TextEncoder(), parts = [], directory = [];
  const bytes = (...fields) => { // [value, bytes], little-endian
    const made = new Uint8Array(fields.reduce((n, [, size]) => n + size, 0));
    let at = 0;
    for (const [value, size] of fields) for (let k = 0; k < size; k++) made[at++] = (value >>> (8 * k)) & 255;
    return made;
  };
  let offset = 0;
  for (const [name, text] of files) {
    const label = encoder.encode(name), body = encoder.encode(text);
    // version 2.0, names in UTF-8, stored, 1 January 1980; CRC, both sizes, length of the name, nothing extra
    const common = [[20, 2], [0x800, 2], [0, 2], [0, 2], [0x21, 2], [crc32(body), 4], [body.length, 4], [body.length, 4], [label.length, 2], [0, 2]];
    const header = bytes([0x04034b50, 4], ...common);
    directory.push(bytes([0x02014b50, 4], [20, 2], ...common, [0, 2], [0, 2], [0, 2], [0, 4], [offset, 4]), label);
    parts.push(header, label, body);
    offset += header.length + label.length + body.length;
  }
  const size = directory.reduce((n, part) => n + part.length, 0);
  return new Blob([...parts, ...directory, bytes([0x06054b50, 4], [0, 4], [files.length, 2], [files.length, 2], [size, 4], [offset, 4], [0, 2])]);
}
