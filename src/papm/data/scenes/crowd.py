"""A crowd on a square seen in perspective: heads grow linearly from the horizon to the bottom of the picture.

The object is the head, an upright ellipse; the body below it is there to be seen and to hide what stands behind. People
are drawn from far to near, and no annotated head has its centre behind a nearer head or behind clutter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from papm.data.scenes.base import Floats, Key, Layout, Look, Style, clumped, fit, scatter_smaller, spots
from papm.data.scenes.canvas import Array, blank, blend, box, cover, disc, ellipse, grid, rgb, texture, window

SLENDER = 0.8  # width of a head over its height
FAR, NEAR = 0.5, 1.5  # size at the horizon and at the bottom over the typical size
SKIN = ((0.96, 0.82, 0.72), (0.90, 0.72, 0.58), (0.80, 0.60, 0.45), (0.62, 0.43, 0.31), (0.45, 0.30, 0.21))
HAIR = ((0.08, 0.07, 0.07), (0.16, 0.11, 0.08), (0.30, 0.19, 0.11), (0.55, 0.41, 0.24), (0.60, 0.58, 0.56))
CLOTH = (
    (0.75, 0.16, 0.17), (0.15, 0.27, 0.55), (0.13, 0.14, 0.17), (0.90, 0.89, 0.86), (0.32, 0.45, 0.27),
    (0.88, 0.66, 0.18), (0.42, 0.25, 0.43), (0.36, 0.55, 0.68), (0.55, 0.52, 0.48), (0.82, 0.47, 0.42),
)  # fmt: skip
WALL = ((0.66, 0.58, 0.50), (0.58, 0.42, 0.36), (0.70, 0.69, 0.66), (0.52, 0.55, 0.58), (0.76, 0.70, 0.58))

# Half width of each kind of clutter, and how far it reaches above its place, over the size of a head there.
REACH = {
    "ball": (0.4, 0.4),
    "balloon": (0.45, 0.5),
    "sign": (0.6, 0.45),
    "pole": (0.35, 4.4),
    "bin": (0.45, 0.0),
    "stain": (0.0, 0.0),
}


class Person(NamedTuple):
    """How one person looks."""

    skin: Array
    hair: Array
    cloth: Array
    legs: Array
    face: float  # −1…1: where the face points; beyond ±1 only hair is seen
    build: float  # width of the shoulders over the usual


def size_at(y: Floats, extent: float, horizon: float, height: int) -> Floats:
    """Typical head size at heights y of the picture, [n]."""
    return extent * (FAR + (NEAR - FAR) * (y - horizon) / max(height - horizon, 1e-6))


def layout(style: Style, n: int, rng: np.random.Generator) -> Layout:
    """Heads in clumps, each with its centre in sight; ordered from far to near."""
    h, _ = style.size
    horizon = float(np.floor(h * (0.14 + 0.12 * rng.random())))
    hot = spots(rng, style.size, horizon)
    hidden = 0.9 * style.occlusion  # how much of its radius a head may have behind a nearer one
    scale = fit((int(h - horizon), style.size[1]), n, style.extent, 0.5)

    def propose(typical: float, m: int) -> Floats:
        # A place on the ground shows n ∝ 1/size² heads a pixel: keep a far candidate more often than a near one.
        where = clumped(rng, 4 * m, style.size, hot, 0.6, horizon)
        size = size_at(where[:, 1], typical, horizon, h)
        keep = np.flatnonzero(rng.random(4 * m) < (FAR * typical / size) ** 1.2)[:m]
        spread = 1 + 0.6 * style.variation * (2 * rng.random((len(keep), 1)) - 1)
        return np.hstack([where[keep], size[keep, None] * spread])

    def clash(p: Floats, q: Floats) -> np.ndarray:
        d2 = ((p[:, None, :2] - q[None, :, :2]) ** 2).sum(-1)
        front = p[:, None, 1] >= q[None, :, 1]
        near, far = np.where(front, p[:, None, 2], q[None, :, 2]), np.where(front, q[None, :, 2], p[:, None, 2])
        # Half the height of a head is ½·extent/√slender: a head that far away cannot hide a centre.
        return np.asarray(d2 < (0.5 / SLENDER**0.5 * (near + (1 - hidden) * far)) ** 2)

    found, typical = scatter_smaller(n, style.extent, scale, propose, clash)
    found = found[np.argsort(found[:, 1], kind="stable")]
    axes = np.stack([found[:, 2] * SLENDER**0.5, found[:, 2] / SLENDER**0.5], 1)
    return Layout(found[:, :2], axes, np.zeros(n), ground={"horizon": horizon, "typical": typical})


def dress(n: int, rng: np.random.Generator) -> list[Person]:
    """The looks of n people."""
    pick = rng.random((n, 4))
    # Shades differ in lightness more than in hue.
    light, hue = 2 * rng.random((n, 4, 1)) - 1, 2 * rng.random((n, 4, 3)) - 1
    shade = 1 + 0.14 * light + np.array([0.02, 0.02, 0.07, 0.05])[:, None] * hue
    more = rng.random((n, 3))
    people = []
    for i in range(n):
        tones: list[Array] = [
            rgb(palette[int(p * len(palette))]) * rgb(s)
            for palette, p, s in zip((SKIN, HAIR, CLOTH, CLOTH), pick[i], shade[i])
        ]
        skin, hair, cloth, legs = tones
        if more[i, 0] < 0.1:  # a hat
            hair = rgb(CLOTH[int(more[i, 0] * 10 * len(CLOTH))])
        face = float(2.9 * more[i, 1] - 1.45)
        people.append(Person(skin, hair, cloth, legs * np.float32(0.6), face, float(0.88 + 0.24 * more[i, 2])))
    return people


def draw_body(canvas: Array, x: float, y: float, a: float, b: float, person: Person) -> None:
    """Shadow, legs and clothes of the person whose head of half axes (a, b) is at (x, y)."""
    wide = 2.05 * a * person.build
    view, dx, dy = window(canvas, x, y, wide + 2.2 * b, wide + 0.5 * b, 0, 8.2 * b)
    blend(view, 0.34 * cover(ellipse(dx + 1.1 * b, dy - 7.1 * b, 2.6 * b, 0.8 * b), 0.5 * b + 1), (0.05, 0.05, 0.08))
    stride = cover(box(dx, dy - 5.6 * b, 0.62 * wide, 1.7 * b, 0.3 * a))
    gap = 1 - 0.45 * cover(np.abs(dx) - 0.07 * wide + 0 * dy, 0.2 * wide + 0.5)
    blend(view, stride, person.legs * gap)
    torso = cover(box(dx, dy - 2.9 * b, wide, 1.75 * b, min(0.95 * b, wide)))
    light = 1.08 - 0.30 * (dx / wide) ** 2 - 0.10 * dx / wide - 0.05 * dy / (3 * b)
    light = light - 0.22 * cover(np.abs(np.abs(dx) - 0.68 * wide) - 0.03 * wide + np.maximum(2.2 * b - dy, 0), 0.8)
    blend(view, torso, person.cloth * light)
    blend(view, cover(box(dx, dy - 1.1 * b, 0.42 * a, 0.35 * b, 0.1 * a)), person.skin * np.float32(0.78))


def draw_head(canvas: Array, x: float, y: float, a: float, b: float, person: Person) -> None:
    """The head: an ellipse of hair with the face on it where it looks our way."""
    view, dx, dy = window(canvas, x, y, a + 1, a + 1, b + 1, b + 1)
    head = cover(ellipse(dx, dy, a, b))
    colour = person.hair * (1 + 0.35 * np.clip(-dx / a - 1.2 * dy / b, -0.6, 1)).astype(np.float32)
    if abs(person.face) < 1:
        face = cover(ellipse(dx - 0.32 * a * person.face, dy - 0.26 * b, 0.80 * a, 0.78 * b), 1.0)
        tone = person.skin * (1.02 - 0.13 * dx / a - 0.10 * dy / b)
        colour = colour + face * (tone - colour)
        eyes = cover(box(dx - 0.40 * a * person.face, dy - 0.12 * b, 0.5 * a, 0.07 * b), 0.5 + 0.2 * b)
        colour = colour * (1 - 0.35 * eyes)
    blend(view, head, colour)


def _background(style: Style, horizon: float, typical: float, rng: np.random.Generator) -> Array:
    """Sky, a row of houses, and paving that recedes to the horizon."""
    h, w = style.size
    x, y = grid(style.size)
    canvas = blank(style.size, (0.70, 0.79, 0.88))
    canvas[:] = canvas - 0.10 * (y / h)
    left = -float(rng.random()) * 0.2 * w
    street, roofs = canvas[:, : int(horizon) + 2], y[: int(horizon) + 2]
    while left < w:  # houses
        wide, top = (0.12 + 0.2 * float(rng.random())) * w, horizon * (0.7 * float(rng.random()) - 0.15)
        lit = 0.85 + 0.25 * float(rng.random())
        wall = rgb(WALL[int(rng.integers(len(WALL)))]) * np.float32(lit)
        house = box(x - left - wide / 2, roofs - (top + horizon) / 2, wide / 2, (horizon - top) / 2)
        blend(street, cover(house), wall)
        pitch = max(0.45 * typical + 0.2 * wide / 3, 3.0)
        columns = np.abs(((x - left) / pitch) % 1 - 0.5) * pitch
        rows = np.abs(((roofs - top) / (1.2 * pitch)) % 1 - 0.5) * 1.2 * pitch
        pane = cover(np.maximum(columns - 0.24 * pitch, rows - 0.34 * pitch))
        blend(street, 0.75 * pane * cover(house + 2), (0.22, 0.26, 0.32))
        left += wide
    depth = 1 / (0.35 + np.maximum(y - horizon, 0) / max(h - horizon, 1))  # ∝ distance on the ground
    tone = (0.50 + 0.12 * rng.random(3) * np.array([1, 0.9, 0.8]) + 0.04).tolist()
    speckle = texture(rng, style.size, (60, 21, 5))
    across, along = (x - w * 0.5) * depth / (3.4 * typical), depth * 5.5
    across = np.abs(across % 1 - 0.5) * (3.4 * typical) / depth  # back to pixels, so that seams have an even width
    along = np.abs(along % 1 - 0.5) * h * 0.35 / depth**2
    seams = 1 - 0.16 * cover(np.minimum(across, along) - 0.3, 1.5)
    shade = (0.86 + 0.16 / depth + 0.06 * speckle) * seams
    blend(canvas, np.broadcast_to(cover(horizon - y), style.size), rgb(tone) * shade)
    return canvas


def _clutter(style: Style, layout: Layout, rng: np.random.Generator) -> list[tuple[float, float, float, str, float]]:
    """Things that are no heads, as (x, y, size, kind, hue): y is where their ball or board is, and sets the depth."""
    h, w = style.size
    horizon, typical = float(layout.ground["horizon"]), float(layout.ground["typical"])
    m = int(rng.poisson(style.clutter * 24 * w * (h - horizon) / (256 * 200) * min((13 / typical) ** 2, 4)))
    draw = rng.random((m, 4))
    depth = horizon + draw[:, 1] * (h - horizon)
    things = []
    for (px, _, pick, hue), y, size in zip(draw.tolist(), depth.tolist(), size_at(depth, typical, horizon, h).tolist()):
        x = px * w
        kind = tuple(REACH)[int(pick * len(REACH))]
        # Nearer heads are drawn later; of the farther ones none may have its middle behind the thing.
        wide, up = REACH[kind]
        dx, dy = np.abs(layout.centres[:, 0] - x), y - layout.centres[:, 1]
        hides = (dy >= 0) & (dx < wide * size + 0.3 * layout.axes[:, 0]) & (dy < up * size + 0.3 * layout.axes[:, 1])
        if not hides.any():
            things.append((x, y, size, kind, hue))
    return sorted(things, key=lambda thing: thing[1])


def draw_clutter(canvas: Array, x: float, y: float, size: float, kind: str, hue: float) -> None:
    """One thing that is no head: a ball or balloon, a sign, a lamp on its pole, a bin, a stain on the ground."""
    reach = 6 * size
    view, dx, dy = window(canvas, x, y, 2 * size, 2 * size, size if kind != "pole" else reach, reach)
    colour = rgb(CLOTH[int(hue * len(CLOTH))])
    r = 0.5 * size
    shine = 1 + 0.3 * np.clip(-(dx + dy) / (2 * r), -1, 1)
    if kind == "stain":
        blend(view, 0.25 * cover(ellipse(dx, dy - 2 * size, 1.5 * size, 0.45 * size), 0.4 * size), (0.1, 0.1, 0.12))
    elif kind == "balloon":
        blend(view, 0.8 * cover(np.abs(dx) - 0.3 + 0 * dy) * ((dy > r) & (dy < 5 * size)), (0.85, 0.85, 0.85))
        blend(view, cover(ellipse(dx, dy, 0.85 * r, r)), colour * shine)
    elif kind == "ball":
        blend(view, 0.35 * cover(ellipse(dx + 0.4 * r, dy - 0.95 * r, 1.2 * r, 0.4 * r), r), (0.05, 0.05, 0.08))
        blend(view, cover(disc(dx, dy, 0.8 * r)), colour * shine)
    elif kind == "sign":
        blend(view, cover(box(dx, dy - 2.2 * size, 0.06 * size, 2.2 * size)), (0.35, 0.36, 0.38))
        blend(view, cover(box(dx, dy, 1.2 * r, 0.9 * r, 0.2 * r)), colour)
        blend(view, 0.8 * cover(box(dx, dy, 0.8 * r, 0.15 * r)), (0.95, 0.95, 0.95))
    elif kind == "pole":
        blend(view, cover(box(dx, dy - 0.5 * size, 0.08 * size, 4.5 * size)), (0.24, 0.25, 0.27))
        blend(view, cover(disc(dx, dy + 4 * size, 0.7 * r)), (0.97, 0.95, 0.84))
    else:
        blend(view, 0.35 * cover(ellipse(dx + r, dy - 2.0 * size, 1.6 * r, 0.5 * r), r), (0.05, 0.05, 0.08))
        blend(view, cover(box(dx, dy - 1.2 * size, 0.9 * r, 0.95 * size, 0.3 * r)), np.float32(0.6) * colour * shine)


def paint(style: Style, layout: Layout, key: Key, objects: bool = True) -> Array:
    """Background, then people and clutter from far to near."""
    horizon, typical = float(layout.ground["horizon"]), float(layout.ground["typical"])
    canvas = _background(style, horizon, typical, key.rng("background"))
    people = dress(len(layout), key.rng("objects"))
    things = _clutter(style, layout, key.rng("clutter"))
    for (x, y), (a, b), person in zip(layout.centres.tolist(), (layout.axes / 2).tolist(), people):
        while things and things[0][1] <= y:
            draw_clutter(canvas, *things.pop(0))
        if objects:
            draw_body(canvas, x, y, a, b, person)
            draw_head(canvas, x, y, a, b, person)
    for thing in things:
        draw_clutter(canvas, *thing)
    return canvas


LOOK = Look("crowd", 13.0, layout, paint)
