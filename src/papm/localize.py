"""Where the objects are: points from a density map, or from the proposals of a point network.

Points are (x, y) in pixels of the original image, inside it, best first.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.structures import PointProposals

MOST_POINTS = 2_000_000  # in one image
_TURN = math.pi / 64


def peaks(
    density: Tensor | NDArray[Any],
    stride: float,
    *,
    size: tuple[int, int] | None = None,
    window: int = 3,
    threshold: float | None = None,
    relative: float | None = None,
    top: Literal["count"] | int | None = None,
    refine: bool = True,
    split: bool = True,
) -> tuple[Tensor, Tensor]:
    """Local maxima of a density map [h, w] or [C, h, w] (classes summed) -> points [n, 2], scores [n].

    A peak is a cell that no cell of the `window`×`window` cells around it exceeds; a plateau gives one peak, in its middle.
    What is kept: peaks of at least `threshold` (objects a cell), of at least `relative` × the largest value, and no more
    than the `top` best; every criterion given applies. With none given `top` is "count": as many points as the map sums
    to, rounded. Values of a stride-8 map peak around 0.1 to 0.7, so an absolute threshold of 0.5 would lose most objects.

    `refine` moves a point from the centre of its cell to the centroid of the window. `split` applies when there are fewer
    peaks than `top` asks for, as in crowds where neighbours melt together, and where a cell of mass 1.5 or more holds
    several objects: the surroundings of a peak that hold mass for n objects are cut into n parts, one point in each.
    `size` is (H, W) of the image, by default h·stride × w·stride. The score is the value of the map at the peak.

    >>> density = torch.zeros(4, 4)
    >>> density[1, 2], density[1, 3] = 0.75, 0.25
    >>> points, scores = peaks(density, 8)
    >>> points.tolist(), scores.tolist()
    ([[22.0, 12.0]], [0.75])
    """
    field = _field(density)
    h, w = field.shape
    height, width = _image_size(field, stride, size)
    if window < 1 or window % 2 == 0:
        raise ConfigError(f"window must be an odd number of cells, 3 for the nearest neighbours; got {window}")
    if top is None and threshold is None and relative is None:
        top = "count"
    if top is not None and top != "count" and (isinstance(top, bool) or not isinstance(top, int) or top < 0):
        raise ConfigError(f"top is 'count' or a whole number of points, 0 or more, not {top!r}")
    most = min(height * width, MOST_POINTS)  # a broken model may claim any number of objects
    wanted = round(min(float(field.sum()), most)) if top == "count" else top
    if not field.numel() or wanted == 0:
        return field.new_zeros(0, 2), field.new_zeros(0)
    floor = max(threshold or 0.0, (relative or 0.0) * float(field.max()))
    x = _centres(w, stride, width, field)
    y = _centres(h, stride, height, field)

    cells, groups, number = _maxima(field, window, floor)
    place = _centroids(field, cells, window, x, y) if refine else _at(cells, w, x, y)
    points = _grouped(place, groups, number)  # the middle of a plateau: the mean over its cells
    scores = field.new_zeros(number).scatter_reduce_(0, groups, field.flatten()[cells], "amax")
    if wanted is not None and split and 0 < number < wanted:
        if (total := float(field.double().sum())) > most:
            field = (field.double() * (most / total)).to(field)
        points, scores = _divide(field, window, cells, groups, wanted, points, scores, x, y, stride)
    order = scores.argsort(descending=True, stable=True)[:wanted]
    return _clip(points[order], height, width), scores[order]


def peaks_by_class(density: Tensor, stride: float, **options: object) -> tuple[Tensor, Tensor, Tensor]:
    """`peaks` of every class of a map [C, h, w] apart -> points [n, 2], scores [n], labels [n] from 0, best first."""
    found = [peaks(d, stride, **options) for d in density]  # type: ignore[arg-type]
    points, scores = torch.cat([p for p, _ in found]), torch.cat([s for _, s in found])
    labels = torch.cat([torch.full((len(s),), k, device=s.device) for k, (_, s) in enumerate(found)])
    order = scores.argsort(descending=True, stable=True)
    return points[order], scores[order], labels[order]


def from_proposals(
    proposals: PointProposals,
    index: int,
    threshold: float = 0.5,
    nms_radius: float | None = None,
    size: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Proposals of image `index` whose best class scores above `threshold` -> points [n, 2], scores [n], labels [n].

    The score is the softmax over the classes and the background (column 0), labels count from 0. With `size` (H, W) points
    outside the image are dropped: a network fed a padded image finds some in the padding. With `nms_radius` a point closer
    than that to a better one is dropped; P2PNet itself does none of this.
    """
    points = proposals.points[index].detach()
    scores, labels = proposals.logits[index].detach().float().softmax(-1)[:, 1:].max(-1)
    keep = scores > threshold
    if size is not None:
        keep &= (points >= 0).all(-1) & (points < points.new_tensor([size[1], size[0]])).all(-1)
    points, scores, labels = points[keep], scores[keep], labels[keep]
    order = scores.argsort(descending=True, stable=True)
    points, scores, labels = points[order], scores[order], labels[order]
    if nms_radius is not None and nms_radius > 0:
        keep = _suppress(points, nms_radius)
        points, scores, labels = points[keep], scores[keep], labels[keep]
    return points, scores, labels


def _field(density: Tensor | NDArray[Any]) -> Tensor:
    """The map as float [h, w] without negative or non-finite values."""
    if isinstance(density, np.ndarray):
        density = torch.as_tensor(density)
    if not isinstance(density, Tensor):
        raise DataError(f"a density map is a tensor or array [h, w] or [C, h, w]; got {type(density).__name__}")
    field = density.detach()
    field = field.sum(0) if field.ndim == 3 else field
    if field.ndim != 2:
        raise DataError(f"a density map is [h, w] or [C, h, w]; got {list(density.shape)}")
    field = field if field.dtype == torch.float64 else field.float()
    return torch.nan_to_num(field, nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)


def _image_size(field: Tensor, stride: float, size: tuple[int, int] | None) -> tuple[float, float]:
    h, w = field.shape
    if stride <= 0:
        raise ConfigError(f"stride must be positive; got {stride}")
    if size is None:
        return h * stride, w * stride
    # a map of a resized image has a fractional stride, whose last cell may end a little off the border
    slack = 0.0 if float(stride).is_integer() else stride
    for cells, pixels in ((h, size[0]), (w, size[1])):
        if not (cells - 1) * stride - slack < pixels <= cells * stride + slack:
            raise DataError(
                f"a map of {h}×{w} cells of stride {stride:g} does not cover an image of {size[0]}×{size[1]}"
            )
    return size


def _centres(cells: int, stride: float, length: float, like: Tensor) -> Tensor:
    """Centres in pixels of the part of each cell that lies in the image, [cells]."""
    start = torch.arange(cells, device=like.device, dtype=like.dtype) * stride
    return (start + (start + stride).clamp(max=length)) / 2


def _at(cells: Tensor, columns: int, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x[cells % columns], y[cells // columns]], -1)


def _pool(field: Tensor, window: int) -> Tensor:
    return F.max_pool2d(field[None, None], window, 1, window // 2)[0, 0]


def _maxima(field: Tensor, window: int, floor: float) -> tuple[Tensor, Tensor, int]:
    """Cells of the local maxima (flat indices [t]), the plateau each belongs to [t], and the number of plateaus."""
    h, w = field.shape
    highest = (field == _pool(field, window)) & (field > 0) & (field >= floor)
    cells = highest.flatten().nonzero()[:, 0]
    if window == 1 or len(cells) < 2:
        return cells, torch.arange(len(cells), device=field.device), len(cells)
    # Connected plateaus: every cell takes the largest label in its window, then the label of that label, until still.
    labels = torch.arange(h * w, device=field.device, dtype=torch.float64).reshape(h, w)
    outside = labels.new_full((), -1.0)
    labels = torch.where(highest, labels, outside)
    while True:
        spread = torch.where(highest, _pool(labels, window), outside)
        spread.view(-1)[cells] = spread.view(-1)[spread.view(-1)[cells].long()]
        if torch.equal(spread, labels):
            break
        labels = spread
    # A plateau beside an equal cell that is no maximum is a shoulder on the way to something higher.
    beyond = _pool(torch.where(highest, field.new_zeros(()), field), window)
    shoulder = (beyond == field).flatten()[cells]
    roots, groups = torch.unique(labels.flatten()[cells], return_inverse=True)
    real = torch.ones(len(roots), dtype=torch.bool, device=field.device)
    real[groups[shoulder]] = False
    kept = real[groups]
    return cells[kept], (real.cumsum(0) - 1)[groups[kept]], int(real.sum())


def _neighbourhood(cells: Tensor, shape: tuple[int, int], window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and existence [t, window²] of the cells around each of `cells`; what does not exist is clamped."""
    h, w = shape
    step = torch.arange(window, device=cells.device) - window // 2
    rows = (cells // w)[:, None] + step.repeat_interleave(window)
    columns = (cells % w)[:, None] + step.repeat(window)
    exists = (rows >= 0) & (rows < h) & (columns >= 0) & (columns < w)
    return rows.clamp(0, h - 1), columns.clamp(0, w - 1), exists


def _centroids(field: Tensor, cells: Tensor, window: int, x: Tensor, y: Tensor) -> Tensor:
    """Centre of mass of the window around each cell, in pixels, [t, 2]."""
    h, w = field.shape
    rows, columns, exists = _neighbourhood(cells, (h, w), window)
    mass = field[rows, columns] * exists
    total = mass.sum(1)
    return torch.stack([(mass * x[columns]).sum(1) / total, (mass * y[rows]).sum(1) / total], -1)


def _grouped(values: Tensor, groups: Tensor, number: int, mass: Tensor | None = None) -> Tensor:
    """Mean of values [t, 2] over each group, weighted by mass [t] where given -> [number, 2]."""
    weight = torch.ones_like(values[:, 0]) if mass is None else mass
    total = values.new_zeros(number).index_add_(0, groups, weight)
    return values.new_zeros(number, 2).index_add_(0, groups, values * weight[:, None]) / total[:, None]


def _divide(
    field: Tensor,
    window: int,
    cells: Tensor,
    groups: Tensor,
    wanted: int,
    points: Tensor,
    scores: Tensor,
    x: Tensor,
    y: Tensor,
    stride: float,
) -> tuple[Tensor, Tensor]:
    """`wanted` points from fewer peaks: basins with mass for n > 1 objects are cut into n parts of equal mass.

    A basin is the cells from which steepest ascent leads to one peak. It is cut across its longest axis, n // 2 objects
    to one side and the rest to the other, and so are the sides; each part gives a point at its centre. Axes and centres
    weigh mass by the map's value squared, which takes back some of the blur.
    (Maps of ShanghaiTech A's own points, σ = 8 px, stride 8, 20% noise: F1 at 8 px 0.90; with the peaks alone 0.54.)
    """
    number = len(points)
    owner, mass, place, value = _basins(field, window, cells, groups, x, y, stride)
    shares = _apportion(field.new_zeros(number).index_add_(0, owner, mass), wanted)
    whole = shares == 1
    points, scores = points[whole], scores[whole]
    # only cells of basins to cut, renumbered; `objects` says how many each part still holds
    torn = ~whole[owner]
    owner, mass, place, value = (~whole).cumsum(0)[owner[torn]] - 1, mass[torn], place[torn], value[torn]
    objects = shares[~whole]
    sharp = mass * value**2
    while bool((objects > 1).any()):
        second = _far_side(owner, mass, sharp, place, objects)
        # a part keeps its number for the near side; the far sides are appended
        cut = (objects > 1).nonzero()[:, 0]
        fresh = torch.zeros_like(objects).index_put_((cut,), torch.arange(len(cut), device=cut.device) + len(objects))
        owner = torch.where(second, fresh[owner], owner)
        near = torch.where(objects > 1, objects // 2, objects)
        objects = torch.cat([near, (objects - near)[cut]])
    middle = _grouped(place, owner, len(objects), sharp)
    best = scores.new_zeros(len(objects)).scatter_reduce_(0, owner, value, "amax")
    return torch.cat([points, middle]), torch.cat([scores, best])


def _basins(
    field: Tensor, window: int, cells: Tensor, groups: Tensor, x: Tensor, y: Tensor, stride: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What belongs to the peaks, in pieces: the number of the peak, mass, place [t, 2] and the map's value.

    A cell of mass m > ¼ is cut into ⌈2√m⌉² squares, so that no piece holds more than a quarter of an object.
    """
    h, w = field.shape
    _, up = F.max_pool2d(field[None, None], window, 1, window // 2, return_indices=True)
    up = up.flatten()
    while not torch.equal(up, further := up[up]):
        up = further
    peak = torch.full((h * w,), -1, device=field.device).index_put_((cells,), groups)
    owner = peak[up]
    kept = ((owner >= 0) & (field.flatten() > 0)).nonzero()[:, 0]
    side = (2 * field.flatten()[kept].sqrt()).ceil().long().clamp(min=1)
    pieces = side**2
    kept, side = kept.repeat_interleave(pieces), side.repeat_interleave(pieces)
    within = torch.arange(len(kept), device=field.device) - (pieces.cumsum(0) - pieces).repeat_interleave(pieces)
    centre = _at(kept, w, x, y)
    corner = torch.stack([kept % w, kept // w], -1) * stride
    part = (torch.stack([within % side, within // side], -1) + 0.5) / side[:, None]
    value = field.flatten()[kept]
    return owner[kept], value / side**2, corner + 2 * (centre - corner) * part, value


def _apportion(mass: Tensor, wanted: int) -> Tensor:
    """How many of `wanted` objects each basin holds: one each, the rest where mass exceeds what was given most.

    No basin gets more than its mass rounded up, so that asking for many points makes none out of nothing.
    """
    rooms = (mass.ceil().long() - 1).clamp(min=0)
    basin = torch.arange(len(mass), device=mass.device).repeat_interleave(rooms)
    given = torch.arange(len(basin), device=mass.device) - (rooms.cumsum(0) - rooms)[basin] + 1
    best = ((mass[basin] - given) * 1e4).round().argsort(descending=True, stable=True)[: max(0, wanted - len(mass))]
    return torch.bincount(basin[best], minlength=len(mass)) + 1


def _far_side(owner: Tensor, mass: Tensor, sharp: Tensor, place: Tensor, objects: Tensor) -> Tensor:
    """bool [t]: which cells of a part lie beyond the cut that leaves n // 2 of its n objects on the near side."""
    number = len(objects)
    off = place - _grouped(place, owner, number, sharp)[owner]
    moments = torch.stack([off[:, 0] ** 2 - off[:, 1] ** 2, 2 * off[:, 0] * off[:, 1]], -1)
    spread = _grouped(moments, owner, number, sharp)
    # Symmetric parts have no longest axis and many ties. Rounding decides them alike on every device: no axis for a
    # spread of 0.1%, directions in steps of 3°, distances in steps of 0.1% of the part's size.
    size = _grouped(off**2, owner, number, sharp).sum(1, keepdim=True)
    spread = torch.where(spread.abs() > 1e-3 * size, spread, torch.zeros_like(spread))
    turn = (torch.atan2(spread[:, 1], spread[:, 0]) / 2 / _TURN).round() * _TURN  # direction of the largest variance
    along = (off * torch.stack([turn.cos(), turn.sin()], -1)[owner]).sum(1)
    order = (along / size.sqrt().clamp(min=1e-12)[owner, 0] * 1e3).round().argsort(stable=True)
    order = order[owner[order].argsort(stable=True)]
    sorted_mass, sorted_owner = mass[order].double(), owner[order]
    total = sorted_mass.new_zeros(number).index_add_(0, sorted_owner, sorted_mass)
    before = sorted_mass.cumsum(0) - sorted_mass / 2 - (total.cumsum(0) - total)[sorted_owner]
    far = before > (total * (objects // 2) / objects + 1e-6 * total)[sorted_owner]
    result = torch.zeros_like(far)
    result[order] = far & (objects > 1)[sorted_owner]
    return result


def _clip(points: Tensor, height: float, width: float) -> Tensor:
    """Points moved inside 0 ≤ x < width, 0 ≤ y < height."""
    limit = points.new_tensor([width, height])
    return points.clamp(min=0).minimum(torch.nextafter(limit, torch.zeros_like(limit)))


def _suppress(points: Tensor, radius: float) -> Tensor:
    """bool [n]: greedy suppression of points, best first, within `radius` of a kept better one.

    Runs in rounds: a point with no better undecided neighbour is kept, its neighbours go. That is the greedy order.
    """
    from scipy.spatial import cKDTree

    n = len(points)
    pairs = cKDTree(points.double().cpu().numpy()).query_pairs(radius, output_type="ndarray")
    better, worse = pairs.min(1), pairs.max(1)
    keep = np.zeros(n, dtype=bool)
    open_ = np.ones(n, dtype=bool)
    while open_.any():
        blocked = np.zeros(n, dtype=bool)
        blocked[worse[open_[better]]] = True
        chosen = open_ & ~blocked
        keep |= chosen
        open_ &= ~chosen
        open_[worse[chosen[better]]] = False
    return torch.from_numpy(keep).to(points.device)
