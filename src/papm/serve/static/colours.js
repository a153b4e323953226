// What the colours of the density mean: a bar with objects per 100 × 100 px, as beside the pictures of `papm predict`.

// Round numbers from zero up to `full`, at most `most` of them; as `papm.legend.ticks`.
export function ticks(full, most = 6) {
  const power = 10 ** Math.floor(Math.log10(full));
  const step = [0.1, 0.2, 0.5, 1, 2, 5].map((s) => s * power).find((s) => full / s < most - 0.01);
  return Array.from({ length: Math.floor((full / step) * (1 + 1e-9)) + 1 }, (_, k) => Number((k * step).toPrecision(3)));
}

export function showScale(figure, density, ramp) { // hidden where there is no map, or nothing in it
  figure.hidden = !density?.full || !ramp;
  if (figure.hidden) return;
  const [bar, marks] = [figure.querySelector("img"), figure.querySelector("ol")];
  if (bar.src !== ramp) bar.src = ramp;
  figure.classList.toggle("above", density.above); // there are denser places than the last colour says
  marks.replaceChildren(...ticks(density.full).map((value) => {
    const mark = document.createElement("li");
    mark.textContent = value.toLocaleString("en");
    mark.style.left = `${(100 * value) / density.full}%`;
    return mark;
  }));
}
