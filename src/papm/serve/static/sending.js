// Images on their way: what was dropped, what the server says about it, and pictures the browser can draw.

// What was dropped: files as they are, and of folders the images and texts in them.
export async function dropped(transfer) {
  const files = [...transfer.files], entries = [...transfer.items].map((i) => i.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((e) => e.isDirectory)) return files;
  const found = [];
  for (let entry; (entry = entries.pop()); ) {
    if (entry.isFile) {
      const file = await new Promise((done, fail) => entry.file(done, fail));
      if (/^[^.].*\.(jpe?g|png|bmp|tiff?|webp|txt)$/i.test(file.name)) found.push(file);
      continue;
    }
    const reader = entry.createReader(); // gives a hundred at a time
    for (let some; (some = await new Promise((done, fail) => reader.readEntries(done, fail))).length; ) entries.push(...some);
  }
  return found;
}

export async function post(path, fields, signal) {
  const form = new FormData();
  for (const [key, value] of Object.entries(fields)) form.append(key, value);
  for (let attempt = 0; ; attempt++) {
    let response;
    try {
      response = await fetch(path, { method: "POST", body: form, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("no answer: is papm serve still running, and the file still there?");
    }
    if (response.ok) return response;
    if (response.status === 429 || ([408, 503].includes(response.status) && attempt < 10)) { // somebody else's images come first
      await new Promise((done) => setTimeout(done, 1000 * (Number(response.headers.get("retry-after")) || 2)));
      continue;
    }
    const said = await response.json().catch(() => ({}));
    throw new Error(said.error || `the server answered ${response.status}`);
  }
}

export async function decoded(blob) {
  const image = new Image(), url = URL.createObjectURL(blob);
  image.src = url;
  try {
    await image.decode();
  } finally {
    URL.revokeObjectURL(url);
  }
  return image;
}

export function thumbnail(image) {
  const made = document.createElement("canvas"), side = 108;
  made.width = made.height = side;
  const scale = Math.max(side / image.naturalWidth, side / image.naturalHeight);
  const [w, h] = [image.naturalWidth * scale, image.naturalHeight * scale];
  made.getContext("2d").drawImage(image, (side - w) / 2, (side - h) / 2, w, h);
  return made;
}
