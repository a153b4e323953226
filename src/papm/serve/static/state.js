// What the parts of the page share: the images, the one that is shown, and how it is looked at.

export const $ = (id) => document.getElementById(id);

export const state = {
  items: [], // every image: {file, name, state, reply, dots, past, future, kept (the dots last downloaded), roi, region, checked, …}
  removed: [], // images that were taken out of the list, the last one last: {item, at}
  fresh: false, // whether that was the last thing done
  model: { max_bytes: Infinity, classes: [] },
  current: null,
  mode: "look", // look, dots or region
  draft: [], // corners of a region that is not closed
  view: { scale: 1, x: 0, y: 0 }, // screen = image · scale + (x, y), in CSS pixels
  cursor: null, // of the keyboard, in image pixels
  hover: null, // the dot under the mouse
};

export const counted = () => state.items.filter((i) => i.state === "done");
export const alone = () => state.model.counts === "none"; // no model: what is counted is the dots
export const unsaved = (item) => item.state === "done" && item.dots !== item.kept; // every change makes a new list of dots
export const some = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
