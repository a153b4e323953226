// Dots that were saved before: a NAME.txt that is dropped with its image, as the page gives it and papm train reads it.

import { split } from "./files.js";
import { change } from "./history.js";

const MOST = 20e6; // bytes of a list; a million dots are less

// Lines "x y" or "x y label"; "#" begins a remark, and the first line may be a heading. Null where it is something else.
export function readDots(text) {
  const dots = [];
  for (const [k, line] of text.split(/\r?\n/).entries()) {
    const words = line.replace(/#.*/, "").trim().split(/[\s,;]+/).filter(Boolean), numbers = words.map(Number);
    if (!words.length || (k === 0 && words.every((w) => /^(x|y|label|class)$/i.test(w)))) continue;
    if (words.length < 2 || words.length > 3 || !numbers.every(Number.isFinite)) return null;
    const [x, y, label] = numbers;
    dots.push(label === undefined ? { x, y } : { x, y, label });
  }
  return dots;
}

export class Saved {
  waiting = new Map(); // dots whose image is not there yet, by its name without ending
  odd = []; // files that are something else

  async read(files) { // and give back the others
    for (const file of files.filter((f) => isText(f.name) && f.name.toLowerCase() !== "classes.txt")) {
      const dots = file.size > MOST ? null : readDots(await file.text());
      if (dots) this.waiting.set(key(file.name), dots);
      else this.odd.push(file.name);
    }
    return files.filter((f) => !isText(f.name));
  }

  give(item, classes) { // in place of what the model saw
    const dots = item.state === "done" && this.waiting.get(key(item.name));
    if (!dots) return;
    this.waiting.delete(key(item.name));
    const { width, height } = item.reply;
    const there = dots.filter((d) => d.x >= 0 && d.y >= 0 && d.x < width && d.y < height);
    change(item, there.map(({ x, y, label }) => ({ x, y, own: true, ...(classes > 1 ? { label: label || 0 } : {}) })), true); // as when they were saved
    item.kept = item.dots;
  }

  get note() {
    const alone = this.waiting.size, odd = this.odd.length;
    const words = [alone && `${alone} NAME.txt without an image`, odd && `${this.odd[0]}${odd > 1 ? ` and ${odd - 1} more are no lists` : " is no list"} of dots`];
    return words.filter(Boolean).join(" · ");
  }
}

const isText = (name) => /\.txt$/i.test(name);
const key = (name) => split(name)[0].toLowerCase();
