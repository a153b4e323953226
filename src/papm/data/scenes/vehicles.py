"""Vehicles from above: parking rows and roads at any angle, with shadows, trees and boxes between them.

The picture is laid out in a turned frame, u along the roads and v across them, cut into bands of parking, road and grass.
Bands offer slots; vehicles take some of them, in clumps. Vehicles never overlap; trees may cover part of one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from papm.data.scenes.base import Floats, Key, Layout, Look, Style, fit, spots
from papm.data.scenes.canvas import Array, blank, blend, box, cover, disc, grid, rgb, texture, turn, window

SLENDER = 0.46  # width of a vehicle over its length
CORNER = 0.22  # rounding over its width
PAINT = (
    (0.93, 0.93, 0.92), (0.80, 0.81, 0.82), (0.55, 0.57, 0.60), (0.16, 0.17, 0.19), (0.09, 0.09, 0.10),
    (0.62, 0.12, 0.12), (0.14, 0.25, 0.48), (0.20, 0.36, 0.30), (0.78, 0.62, 0.30), (0.92, 0.91, 0.88),
)  # fmt: skip
GRASS, ASPHALT, PAVING = (0.33, 0.42, 0.24), (0.36, 0.37, 0.385), (0.56, 0.54, 0.51)


class Band(NamedTuple):
    """A strip across the frame from v0 to v1; `pitch` is the width of its slots (parking) or of its lanes (road)."""

    kind: str  # "parking" | "road" | "grass"
    v0: float
    v1: float
    pitch: float
    phase: float


def _bands(reach: float, long: float, wide: float, rng: np.random.Generator) -> list[Band]:
    """Bands that fill −reach…reach; a parking band is row, aisle, row."""
    v = -reach - 3 * long * float(rng.random())
    bands: list[Band] = []
    while v < reach:
        kind = ("parking", "parking", "road", "grass")[int(rng.integers(4))]
        if bands and bands[-1].kind == kind and kind != "parking":
            kind = "parking"
        deep = {
            "parking": 3.6 * long,
            "road": 1.75 * wide * int(rng.integers(2, 5)),
            "grass": (0.4 + 0.8 * float(rng.random())) * long,
        }[kind]
        pitch = {"parking": 1.32 * wide, "road": 1.75 * wide, "grass": 1.0}[kind]
        bands.append(Band(kind, v, v + deep, pitch, float(rng.random()) * pitch))
        v += deep
    return bands


def _slots(bands: list[Band], reach: float, long: float, rng: np.random.Generator) -> Floats:
    """Every place for a vehicle as (u, v, angle) in the turned frame; angle 0 is along the road."""
    rows = []
    for band in bands:
        if band.kind == "parking":
            count = int(2 * reach / band.pitch)
            u = -reach + band.phase + band.pitch * (np.arange(count) + 0.5)
            for v in (band.v0 + 0.62 * long, band.v1 - 0.62 * long):
                jitter = 2 * rng.random((3, count)) - 1
                turned = np.pi / 2 * np.where(rng.random(count) < 0.5, 1, -1) + 0.04 * jitter[2]
                rows.append(np.stack([u + 0.04 * band.pitch * jitter[0], v + 0.04 * long * jitter[1], turned], 1))
        elif band.kind == "road":
            lanes = round((band.v1 - band.v0) / band.pitch)
            for lane in range(lanes):
                count = int(2 * reach / (1.5 * long))
                u = -reach + 1.5 * long * (np.arange(count) + float(rng.random()))
                jitter = 2 * rng.random((3, count)) - 1
                ahead = 0.0 if lane < lanes / 2 else np.pi
                v = band.v0 + (lane + 0.5) * band.pitch + 0.08 * band.pitch * jitter[1]
                rows.append(np.stack([u + 0.2 * long * jitter[0], v, ahead + 0.03 * jitter[2]], 1))
    return np.vstack([np.zeros((0, 3)), *rows])


def layout(style: Style, n: int, rng: np.random.Generator) -> Layout:
    """n vehicles in the slots of a turned frame; smaller ones when the picture has too few slots."""
    h, w = style.size
    direction = float(rng.random()) * np.pi
    cos, sin = float(np.cos(direction)), float(np.sin(direction))
    reach = 0.5 * float(np.hypot(h, w)) + 2
    scale = fit(style.size, n, style.extent, 0.3)
    hot = spots(rng, style.size)
    while True:
        typical = style.extent * scale / SLENDER**0.5  # length
        long, wide = typical * (1 + style.variation), typical * SLENDER * (1 + style.variation)
        bands = _bands(reach, long, wide, rng)
        slots = _slots(bands, reach, long, rng)
        centres = np.stack([slots[:, 0] * cos - slots[:, 1] * sin, slots[:, 0] * sin + slots[:, 1] * cos], 1)
        centres += np.array([w / 2, h / 2])
        inside = ((centres >= 0) & (centres < np.array([w, h]))).all(1)
        if inside.sum() >= 1.1 * n:
            break
        scale *= 0.93
    slots, centres = slots[inside], centres[inside]
    # A weighted draw without replacement (smallest −ln(u)/weight): places near a hot spot fill first.
    d2 = ((centres[:, None] - hot[None, :, :2]) ** 2 / (1.6 * hot[None, :, 2:]) ** 2).sum(-1)
    weight = 0.25 + np.exp(-0.5 * d2).sum(1)
    taken = np.sort(np.argsort(-np.log1p(-rng.random(len(slots))) / weight, kind="stable")[:n])
    size = typical * (1 + style.variation * (2 * rng.random(n) - 1))
    slender = SLENDER * (1 + 0.1 * (2 * rng.random(n) - 1)) * np.minimum(1, (typical / size) ** 0.5)
    axes = np.stack([size, np.minimum(size * slender, wide)], 1)
    sun = float(rng.random()) * 2 * np.pi
    ground = {"bands": bands, "direction": direction, "reach": reach, "long": typical, "sun": sun}
    return Layout(centres[taken], axes, slots[taken, 2] + direction, corner=CORNER, ground=ground)


def draw_shadow(canvas: Array, x: float, y: float, a: float, b: float, angle: float, sun: tuple[float, float]) -> None:
    """The soft shadow a vehicle throws on the ground."""
    view, dx, dy = window(canvas, x, y, 1.5 * a)
    u, v = turn(dx - sun[0] * 0.4 * b, dy - sun[1] * 0.4 * b, angle)
    blend(view, 0.55 * cover(box(u, v, a, b, 2 * b * CORNER), 1 + 0.25 * b), (0.06, 0.07, 0.09))


def draw_vehicle(
    canvas: Array, x: float, y: float, a: float, b: float, angle: float, colour: Array, van: float
) -> None:
    """One vehicle of half axes (a, b), its nose along `angle`: body, glass, roof."""
    view, dx, dy = window(canvas, x, y, a + 1)
    u, v = turn(dx, dy, angle)
    body = cover(box(u, v, a, b, 2 * b * CORNER))
    shade = (1.04 - 0.22 * (v / b) ** 2 - 0.06 * (u / a) ** 2).astype(np.float32)
    skin = colour * shade
    cabin = 0.86 * b
    front, back = (0.42, -0.88) if van > 0.8 else (0.28, -0.62)  # ends of the glass, over the half length
    middle, half = 0.5 * (front + back) * a, 0.5 * (front - back) * a
    glass = cover(box(u - middle, v, half, cabin, 0.35 * b))
    skin = skin + 0.9 * glass * (rgb((0.10, 0.13, 0.17)) * (1.2 + 0.5 * u / a) - skin)
    roof = cover(box(u - middle + 0.06 * a, v, half - 0.19 * a, 0.80 * cabin, 0.25 * b))
    skin = skin + roof * (colour * np.float32(1.03) * shade - skin)
    lamps = cover(box(u - 0.93 * a, np.abs(v) - 0.66 * b, 0.06 * a, 0.2 * b), 0.8)
    skin = skin + 0.6 * lamps * (rgb((0.98, 0.96, 0.85)) - skin)
    blend(view, body, skin)


def _background(style: Style, layout: Layout, rng: np.random.Generator) -> Array:
    """Asphalt with its marks, and grass with kerbs, in the turned frame."""
    h, w = style.size
    direction = float(layout.ground["direction"])
    x, y = grid(style.size)
    u, v = turn(x - w / 2, y - h / 2, direction)
    coarse, fine = texture(rng, style.size, (70, 30)), texture(rng, style.size, (9, 3))
    tone = float(0.85 + 0.6 * rng.random())
    canvas = blank(style.size, ASPHALT) * (tone * (1 + 0.07 * coarse + 0.05 * fine))
    road, kerb, lawn, white, yellow = _marks(layout, u, v)
    blend(canvas, 0.5 * road, rgb(ASPHALT) * (0.82 * (1 + 0.05 * fine)))
    blend(canvas, np.minimum(kerb, 1), rgb(PAVING) * (1 + 0.05 * fine))
    blend(canvas, np.minimum(lawn, 1), rgb(GRASS) * (1 + 0.16 * coarse + 0.22 * fine))
    blend(canvas, 0.75 * np.minimum(white, 1), (0.88, 0.88, 0.85))
    blend(canvas, 0.75 * np.minimum(yellow, 1), (0.90, 0.84, 0.60))
    return canvas


def _marks(layout: Layout, u: Array, v: Array) -> Array:
    """Coverage [5, H, W] of roads, kerbs, lawns, white and yellow lines at (u, v) of the turned frame."""
    long = float(layout.ground["long"])
    line = max(0.035 * long, 0.45)  # half width of a painted line
    dash = cover(np.abs((u + 1e4) % (2.2 * long) - 1.1 * long) - 0.45 * long)
    planes = np.zeros((5, *v.shape), np.float32)
    road, kerb, lawn, white, yellow = planes
    for band in layout.ground["bands"]:
        strip = cover(np.maximum(band.v0 - v, v - band.v1))
        if not strip.any():
            continue
        if band.kind == "grass":
            kerb += strip
            lawn += cover(np.maximum(band.v0 - v, v - band.v1) + 0.12 * long)
        elif band.kind == "parking":
            stripes = (u + float(layout.ground["reach"]) - band.phase) % band.pitch
            middle, half = 0.5 * (band.v0 + band.v1), 0.5 * (band.v1 - band.v0)
            away = np.abs(v - middle)
            rows = cover(np.maximum(half - 1.2 * long - away, away - half))
            white += cover(np.minimum(stripes, band.pitch - stripes) - line) * rows
        else:
            road += strip
            lanes = round((band.v1 - band.v0) / band.pitch)
            for lane in range(lanes + 1):
                mark = cover(np.abs(v - band.v0 - lane * band.pitch) - line)
                if lane in (0, lanes):
                    white += mark
                elif lane * 2 == lanes:
                    yellow += mark * dash
                else:
                    white += mark * dash
    return planes


def draw_tree(canvas: Array, x: float, y: float, radius: float, hue: float, rng: np.random.Generator) -> None:
    """A crown from above: lobes of leaves, lit from one side."""
    view, dx, dy = window(canvas, x, y, radius)
    if not view.size:
        return  # without drawing from rng
    green = rgb((0.16 + 0.14 * hue, 0.30 + 0.10 * hue, 0.13))
    angles, out = rng.random(9) * 2 * np.pi, 0.60 * np.sqrt(rng.random(9))
    for i in range(9):
        lx, ly = radius * float(out[i] * np.cos(angles[i])), radius * float(out[i] * np.sin(angles[i]))
        lobe = cover(disc(dx - lx, dy - ly, 0.38 * radius), 0.16 * radius + 1)
        light = 0.80 + 0.06 * i - 0.35 * (dx - lx + dy - ly) / radius
        blend(view, 0.95 * lobe, green * light.astype(np.float32))


class Thing(NamedTuple):
    """Something between the vehicles: a tree (a crown of that radius) or a crate (about that half diagonal)."""

    tree: bool
    x: float
    y: float
    radius: float
    pick: tuple[float, float]


def _clutter(style: Style, layout: Layout, rng: np.random.Generator) -> list[Thing]:
    """Trees and crates that hide no centre of a vehicle; only trees reach over one at all, as `occlusion` lets them."""
    h, w = style.size
    long, half = float(layout.ground["long"]), layout.axes[:, 0] / 2
    many = int(rng.poisson(style.clutter * 44 * h * w / 256**2 * min((19 / long) ** 2, 4)))
    things = []
    for px, py, size, kind, one, two in rng.random((many, 6)).tolist():
        thing = Thing(kind < 0.5, px * w, py * h, (0.40 + 0.45 * size) * long, (one, two))
        distance = np.hypot(layout.centres[:, 0] - thing.x, layout.centres[:, 1] - thing.y)
        # One pixel and a half for the soft edge, which matters where vehicles are tiny.
        room = 1.5 + half * (1 - 0.75 * style.occlusion if thing.tree else 1)
        if not (distance < thing.radius + room).any():
            things.append(thing)
    return things


def draw_crate(canvas: Array, thing: Thing, angle: float, sun: tuple[float, float]) -> None:
    """A ribbed container or crate with its shadow: a rectangle without glass."""
    x, y, r, (shape, colour) = thing.x, thing.y, thing.radius, thing.pick
    a, b = 0.62 * r, (0.35 + 0.27 * shape) * r
    draw_shadow(canvas, x, y, a, b, angle, sun)
    view, dx, dy = window(canvas, x, y, r)
    u, v = turn(dx, dy, angle)
    ribs = 0.9 + 0.09 * np.sin(u * (12 / a))
    blend(view, cover(box(u, v, a, b)), rgb(PAINT[int(colour * len(PAINT))]) * ribs)


def paint(style: Style, layout: Layout, key: Key, objects: bool = True) -> Array:
    """Ground, what stands on it, vehicles, and the crowns that reach over them."""
    canvas = _background(style, layout, key.rng("background"))
    rng, n = key.rng("objects"), len(layout)
    sun = (float(np.cos(layout.ground["sun"])), float(np.sin(layout.ground["sun"])))
    pick, tint, van = rng.random(n), 1 + 0.03 * (2 * rng.random((n, 3)) - 1), rng.random(n)
    rows = np.hstack([layout.centres, layout.axes / 2, layout.angles[:, None]]).tolist()
    clutter = key.rng("clutter")
    things = _clutter(style, layout, clutter)
    for thing in things:
        if thing.tree:
            r = thing.radius
            view, dx, dy = window(canvas, thing.x + 0.4 * r * sun[0], thing.y + 0.4 * r * sun[1], r + 2)
            blend(view, 0.42 * cover(disc(dx, dy, 0.92 * r), 0.3 * r + 1), (0.05, 0.07, 0.07))
        else:
            across = np.pi / 2 if thing.pick[0] < 0.5 else 0.0
            draw_crate(canvas, thing, float(layout.ground["direction"]) + across, sun)
    if objects:
        for x, y, a, b, angle in rows:
            draw_shadow(canvas, x, y, a, b, angle, sun)
        for i, (x, y, a, b, angle) in enumerate(rows):
            colour = rgb(PAINT[int(pick[i] * len(PAINT))]) * rgb(tint[i])
            draw_vehicle(canvas, x, y, a, b, angle, colour, float(van[i]))
    for thing in things:
        if thing.tree:
            draw_tree(canvas, thing.x, thing.y, thing.radius, thing.pick[0], clutter)
    return canvas


LOOK = Look("vehicles", 13.0, layout, paint)
