"""Cells under a microscope: glowing in fluorescence, or stained in bright field.

Light adds up in fluorescence and absorbance adds up in bright field, so overlapping cells have no front and back. Every
cell is drawn even about its centre (edge, nucleus, granules), which keeps its centroid on the annotated point.
"""

from __future__ import annotations

import numpy as np

from papm.data.scenes.base import Floats, Key, Layout, Look, Style, clumped, fit, scatter_smaller, spots
from papm.data.scenes.canvas import Array, box, cover, disc, ellipse, grid, smooth_noise, texture, turn, window

# (glow, dim background): DAPI blue, GFP green, Cy3 orange, Cy5 magenta
DYES = (
    ((0.30, 0.55, 1.00), (0.010, 0.015, 0.050)),
    ((0.35, 1.00, 0.45), (0.010, 0.035, 0.015)),
    ((1.00, 0.62, 0.22), (0.040, 0.015, 0.010)),
    ((0.95, 0.38, 0.90), (0.035, 0.010, 0.035)),
)
# (light of the empty slide, absorbance of the cytoplasm, absorbance of the nucleus), each RGB
STAINS = (
    ((0.95, 0.92, 0.93), (0.25, 0.75, 0.35), (1.05, 1.55, 0.62)),  # haematoxylin and eosin
    ((0.93, 0.94, 0.95), (0.62, 0.34, 0.16), (1.60, 1.05, 0.42)),  # methylene blue
    ((0.94, 0.93, 0.88), (0.40, 0.48, 0.62), (0.85, 1.15, 1.30)),  # brown peroxidase
)


def layout(style: Style, n: int, rng: np.random.Generator) -> Layout:
    """Clumps of ellipses that touch and overlap as far as `occlusion` lets them."""
    hot = spots(rng, style.size)
    reach = 1 - 0.6 * style.occlusion  # distance of two centres over the sum of their radii
    scale = fit(style.size, n, style.extent, 0.5)
    bright = bool(rng.random() < 0.5)

    def propose(typical: float, m: int) -> Floats:
        extent = typical * (1 + style.variation * (2 * rng.random((m, 1)) - 1))
        return np.hstack([clumped(rng, m, style.size, hot, 0.55, 0.0), extent])

    def clash(p: Floats, q: Floats) -> np.ndarray:
        d2 = ((p[:, None, :2] - q[None, :, :2]) ** 2).sum(-1)
        return np.asarray(d2 < (reach * 0.5 * (p[:, None, 2] + q[None, :, 2])) ** 2)

    found, _ = scatter_smaller(n, style.extent, scale, propose, clash)
    ratio = np.sqrt(1 + (0.15 + 0.6 * style.variation) * rng.random(n))  # length / extent
    axes = np.stack([found[:, 2] * ratio, found[:, 2] / ratio], 1)
    return Layout(found[:, :2], axes, rng.random(n) * np.pi, ground={"bright": bright})


def draw_cell(
    glow: Array, core: Array, x: float, y: float, a: float, b: float, angle: float, level: float, grain: float
) -> None:
    """Add one cell of half axes (a, b) to two planes [H, W]: its body and its nucleus."""
    body, dx, dy = window(glow, x, y, a + 3)
    inner = window(core, x, y, a + 3)[0]
    u, v = turn(dx, dy, angle)
    distance = ellipse(u, v, a, b)
    soft = 1.0 + 0.18 * b
    edge = cover(distance, soft)
    # Granules: an even function of (u, v), so that the centroid stays where it is.
    granules = 1 + 0.22 * np.cos(u * grain / a + 1.1) * np.cos(v * 0.8 * grain / b)
    granules += 0.22 * (np.cos(u * grain / a - 1.1) * np.cos(v * 0.8 * grain / b))
    rim = np.clip(1 + distance / (0.5 * b), 0, 1)  # 0 in the middle, 1 at the edge
    body += level * edge * (0.78 + 0.22 * rim * rim) * (0.75 + 0.25 * granules)
    inner += level * cover(ellipse(u, v, 0.52 * a, 0.52 * b), soft) * granules


def _debris(style: Style, rng: np.random.Generator, plane: Array, typical: float) -> None:
    """Specks, fibres and out-of-focus blobs: things that absorb or glow and are no cells."""
    h, w = style.size
    specks = rng.poisson(style.clutter * h * w / 2500)
    for x, y, r, level in zip(rng.random(specks) * w, rng.random(specks) * h, rng.random(specks), rng.random(specks)):
        radius = float(0.05 + 0.09 * r) * typical
        view, dx, dy = window(plane, float(x), float(y), radius + 1)
        view += float(0.4 + 0.6 * level) * cover(disc(dx, dy, radius), 1.2)
    for _ in range(rng.poisson(style.clutter * h * w / 22000)):
        x, y, angle = float(rng.random() * w), float(rng.random() * h), float(rng.random() * np.pi)
        half, bend = typical * float(0.6 + 1.4 * rng.random()), float(rng.random() - 0.5) / typical
        view, dx, dy = window(plane, x, y, half + 2)
        u, v = turn(dx, dy, angle)
        view += 0.45 * cover(box(u, v - bend * u * u, half, 0.035 * typical + 0.3), 1.4)
    for _ in range(rng.poisson(style.clutter * h * w / 16000)):
        x, y, r = float(rng.random() * w), float(rng.random() * h), typical * float(1.0 + 1.6 * rng.random())
        view, dx, dy = window(plane, x, y, r)
        bump = np.clip(1 - (dx**2 + dy**2) / (r * r), 0, 1)
        view += 0.16 * bump * bump


def paint(style: Style, layout: Layout, key: Key, objects: bool = True) -> Array:
    """Accumulate cells and debris in planes, then turn them into light."""
    h, w = style.size
    back = key.rng("background")
    body, core, dirt = (np.zeros(style.size, np.float32) for _ in range(3))
    typical = float(np.median(layout.extents)) if len(layout) else style.extent
    look = key.rng("objects").random((len(layout) if objects else 0, 2))
    for (x, y), (a, b), angle, (level, grain) in zip(
        layout.centres.tolist(), (layout.axes / 2).tolist(), layout.angles.tolist(), look.tolist()
    ):
        draw_cell(body, core, x, y, a, b, angle, 0.55 + 0.45 * level, 3 + 3 * grain)
    _debris(style, key.rng("clutter"), dirt, typical)

    # Uneven illumination: a lamp off the axis, and slow unevenness of the slide.
    x, y = grid(style.size)
    lamp = (0.3 + 0.4 * back.random(2)).tolist()
    light = 1 - 0.55 * ((x / w - lamp[0]) ** 2 + (y / h - lamp[1]) ** 2)
    light = light * (1 + 0.04 * smooth_noise(back, style.size, max(h, w) / 3))
    slide = texture(back, style.size, (40, 17, 6))
    if layout.ground["bright"]:
        lamp_rgb, cytoplasm, nucleus = STAINS[int(back.integers(len(STAINS)))]
        film = np.maximum(0.05 + 0.05 * slide, 0)
        planes = [
            c * light * np.exp(-(0.62 * p * body + 0.75 * q * core + 0.9 * (0.5 + 0.5 * p) * dirt + p * film))
            for c, p, q in zip(lamp_rgb, cytoplasm, nucleus)
        ]
        return np.stack(planes).astype(np.float32)
    glow, dim = DYES[int(back.integers(len(DYES)))]
    signal = light * (0.85 * body + 0.45 * core + 0.8 * dirt + np.maximum(0.05 + 0.035 * slide, 0))
    # Bright spots saturate softly and towards white, as a camera's do.
    return np.stack([d + 1 - np.exp(-signal * (0.12 + 1.15 * g)) for g, d in zip(glow, dim)]).astype(np.float32)


LOOK = Look("cells", 17.0, layout, paint)
