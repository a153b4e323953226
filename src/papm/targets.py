"""Points → maps whose sum is the number of points inside the image, exactly.

Every kernel is normalised by its own sum over the pixels it covers, so no mass is lost at borders, by truncation or by
pixel aliasing, whatever σ and s. A map of stride S is the S×S block sum of the full-resolution map; it is built
directly, without the full-resolution one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from papm import _kernel_maps, ggd
from papm.errors import ConfigError, DataError, unknown
from papm.points import inside, spacing
from papm.structures import PointBatch, as_tensor
from papm.text import Brief

Kernel = Literal["ggd", "gaussian", "adaptive"]

# A kernel is cut where it falls to this fraction of its peak ...
TOLERANCE = 1e-8
# ... but never wider than this many σ: s = 0.5 would reach 480 σ.
MAX_RADIUS = 32.0
# Window pixels evaluated at a time, whatever the number of points: on a CPU about what stays in
# its cache, on a GPU what bounds the memory at about 200 MB.
CHUNK = {"cpu": 1 << 16, "cuda": 1 << 23}
# Geometry-adaptive bandwidth: σ = 0.3 × the mean distance to the three nearest points (MCNN, CSRNet).
ADAPTIVE_BETA = 0.3
# Duplicate points have distance zero; below one pixel a kernel is a dot anyway.
ADAPTIVE_MIN = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Domain(Brief):
    """Where the whole images lie, in the coordinates of their windows: corners (x, y) [B, 2] each."""

    lower: Tensor
    upper: Tensor

    def axis(self, k: int) -> tuple[Tensor, Tensor]:
        """First and last edge along x (0) or y (1), [B, 1] each."""
        return self.lower[:, None, k], self.upper[:, None, k]


def density_map(
    points: Tensor,
    size: tuple[int, int],
    kernel: Kernel = "ggd",
    sigma: float = 4.0,
    shape: float = 8.0,
    stride: int = 1,
) -> Tensor:
    """One image's map [ceil(H/stride), ceil(W/stride)] from its points [n, 2]; the sum is the number of points inside.

    `ggd` is the paper's HD-PAPM (σ=4, s=8, Table 7); `gaussian` ignores `shape`; `adaptive` is the geometry-adaptive
    Gaussian, whose σ follows the distance to the three nearest points.

    >>> round(float(density_map(torch.tensor([[0.0, 0.0], [20.3, 11.9]]), size=(24, 32), stride=8).sum()), 5)
    2.0
    """
    xy = as_tensor(points)
    if xy.numel() and (xy.dim() != 2 or xy.shape[1] != 2):
        raise DataError(f"the points of a map must be [n, 2], not {list(xy.shape)}")
    xy = xy.reshape(-1, 2)
    if xy.dtype not in (torch.float32, torch.float64):
        xy = xy.float()
    batch = PointBatch(xy[None], inside(xy, size)[None])
    if kernel == "adaptive":
        xy = xy[batch.valid[0]]  # a neighbour outside the image is none
        batch = PointBatch(xy[None], batch.valid[:, batch.valid[0]])
        return density_maps(batch, size, "gaussian", adaptive_sigma(xy, size).to(xy)[None], 2.0, stride)[0]
    return density_maps(batch, size, kernel, sigma, shape, stride)[0]


def adaptive_sigma(points: Tensor, size: tuple[int, int]) -> Tensor:
    """Bandwidth of each point, [n], as `sigma_from_spacing` has it."""
    return sigma_from_spacing(spacing(points, alone=torch.inf), size)


def sigma_from_spacing(distance: Tensor, size: tuple[int, int]) -> Tensor:
    """0.3 × the mean distance to the three nearest points; a point alone in its image gets mean(H, W)/4 (CSRNet's rule)."""
    sigma = (ADAPTIVE_BETA * distance).clamp(min=ADAPTIVE_MIN)
    return torch.where(distance < torch.inf, sigma, (size[0] + size[1]) / 8)


def spacing_alone(size: tuple[int, int]) -> float:
    """The spacing that a point alone in its image is given: 0.3 × it is what `sigma_from_spacing` has for it alone.

    >>> round(ADAPTIVE_BETA * spacing_alone((96, 128)), 6), float(sigma_from_spacing(torch.tensor(torch.inf), (96, 128)))
    (28.0, 28.0)
    """
    return (size[0] + size[1]) / 8 / ADAPTIVE_BETA


def density_maps(
    points: PointBatch,
    size: tuple[int, int],
    kernel: Kernel = "ggd",
    sigma: float | Tensor = 4.0,
    shape: float = 8.0,
    stride: int = 1,
    domain: Domain | None = None,
) -> Tensor:
    """Maps of a padded batch, [B, ceil(H/stride), ceil(W/stride)], on the device of the points, without a host sync.

    `sigma` may be a tensor [B, N], one bandwidth a point (Gaussian kernels only). `domain` says that the maps are windows
    of larger images: the result is then the window of the whole image's map, to which points outside the window (but
    inside the image) contribute too.
    """
    if kernel not in ("ggd", "gaussian"):
        raise unknown("kernel", kernel, ("ggd", "gaussian", "adaptive"))
    if min(size) < 1 or stride < 1:
        raise ConfigError(f"a map needs a size and a stride of at least 1, not size={size}, stride={stride}")
    gaussian = kernel == "gaussian" or shape == 2
    if isinstance(sigma, Tensor):
        if not gaussian:
            raise ConfigError("one bandwidth a point is supported for the Gaussian kernel only")
    elif not sigma > 0 or not shape > 0:
        raise ConfigError(f"a kernel needs sigma > 0 and shape > 0, not sigma={sigma}, shape={shape}")
    if domain is None:
        valid = points.valid & inside(points.xy, size)
    else:
        valid = points.valid & ((points.xy >= domain.lower[:, None]) & (points.xy < domain.upper[:, None])).all(-1)
    if gaussian and (isinstance(sigma, Tensor) or not _sparse(points.xy, size, sigma, stride)):
        return _separable(points.xy, valid, size, sigma, stride, domain)
    assert not isinstance(sigma, Tensor)
    shape = 2.0 if gaussian else shape
    return _windows(points.xy, valid, size, sigma, shape, stride, domain)


def _sparse(xy: Tensor, size: tuple[int, int], sigma: float, stride: int) -> bool:
    """Whether a Gaussian's window is so small a part of the map that drawing windows beats the product of all profiles."""
    radius = math.floor(ggd.support_radius(sigma, 2.0, TOLERANCE) + 0.5)
    cells = (size[0] // stride) * (size[1] // stride)
    return sigma >= 0.75 and (2 * radius + 1) ** 2 < cells / 16 and _kernel_maps.usable(xy, 2.0, radius)


def _separable(
    xy: Tensor, valid: Tensor, size: tuple[int, int], sigma: float | Tensor, stride: int, domain: Domain | None
) -> Tensor:
    """Gaussians factor into rows and columns: the map is one matrix product of the two normalised profiles."""
    xy = torch.where(valid[..., None], xy, 0.0)  # what is left out may hold anything, NaN too
    rows = _profile(xy[..., 1], size[0], sigma, stride, None if domain is None else domain.axis(1))
    columns = _profile(xy[..., 0], size[1], sigma, stride, None if domain is None else domain.axis(0))
    rows = torch.where(valid[..., None], rows, 0.0)
    with torch.autocast(xy.device.type, enabled=False):
        return torch.einsum("bnh,bnw->bhw", rows, columns)


def _profile(
    centre: Tensor, length: int, sigma: float | Tensor, stride: int, domain: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Gaussian mass of each cell along one axis, [..., ceil(length/stride)], summing to one inside the image."""
    pixels = torch.arange(length, device=centre.device, dtype=centre.dtype) + 0.5
    # Narrower kernels vanish in float32 between two pixels; at this width they are one pixel already.
    width = sigma if isinstance(sigma, Tensor) else centre.new_full((), max(sigma, 0.04))
    values = ggd.kernel((pixels - centre[..., None]).square(), width[..., None], 2.0)
    if domain is not None:
        values = values * ((pixels >= domain[0][..., None]) & (pixels < domain[1][..., None]))
    cells = -(-length // stride)
    if cells * stride != length:
        values = torch.nn.functional.pad(values, (0, cells * stride - length))
    values = values.reshape(*values.shape[:-1], cells, stride).sum(-1)
    if domain is None:
        return values / values.sum(-1, keepdim=True)
    # What is wanted is the sum over the image's pixels, beyond the window too.
    mass: Tensor
    if isinstance(sigma, Tensor):
        # The integral: for σ ≥ 1 that sum to about 1 % at a border and to 1e-8 elsewhere.
        lower, upper = ((edge - centre) / width for edge in domain)
        mass = (torch.special.ndtr(upper) - torch.special.ndtr(lower)) * width * math.sqrt(2 * math.pi)
        return values / mass.clamp(min=1e-6)[..., None]
    radius = max(1, math.floor(ggd.support_radius(sigma, 2.0, TOLERANCE) + 0.5))
    near = centre.floor()[..., None] + torch.arange(-radius, radius + 1, device=centre.device) + 0.5
    kept = (near >= domain[0][..., None]) & (near < domain[1][..., None])
    mass = (ggd.kernel((near - centre[..., None]).square(), width, 2.0) * kept).sum(-1, keepdim=True)
    return values / mass.clamp(min=torch.finfo(mass.dtype).tiny)


def _windows(
    xy: Tensor, valid: Tensor, size: tuple[int, int], sigma: float, shape: float, stride: int, domain: Domain | None
) -> Tensor:
    """Evaluate each kernel on the window it covers only, normalise it there, and add it into its cells."""
    batch, n, _ = xy.shape
    h, w = -(-size[0] // stride), -(-size[1] // stride)
    extent = min(ggd.support_radius(sigma, shape, TOLERANCE), MAX_RADIUS * sigma)
    # Pixel k of the window has its centre at k + ½ - frac, frac in [0, 1), from the point: |k| ≤ extent + ½ covers it.
    radius = max(1, math.floor(extent + 0.5))  # a point on the corner of four pixels belongs to all of them
    if domain is None:
        radius = min(radius, max(size))
    if sigma >= 0.75 and _kernel_maps.usable(xy, shape, radius):
        lower = xy.new_zeros(batch, 2) if domain is None else domain.lower
        upper = xy.new_tensor((size[1], size[0])).expand(batch, 2) if domain is None else domain.upper
        drawn = xy.new_zeros(batch, h, w)
        _kernel_maps.add(drawn, xy, valid, radius, sigma, shape, size, stride, lower, upper)
        return drawn
    offsets = torch.arange(-radius, radius + 1, device=xy.device)
    flat, keep = xy.reshape(-1, 2), valid.reshape(-1)
    image = torch.arange(batch, device=xy.device).repeat_interleave(n)
    # Along each axis first, [2, points, side]: columns, then rows.
    pixels = flat.T.floor().long()[..., None] + offsets
    shown = torch.stack([(k >= 0) & (k < end) for k, end in zip(pixels, (size[1], size[0]))])
    if domain is None:
        counted = shown
    else:  # pixels of the image beyond the window count in the norm only
        low, high = domain.lower[image].T[..., None], domain.upper[image].T[..., None]
        counted = (pixels + 0.5 >= low) & (pixels + 0.5 < high)
    d2 = (pixels + 0.5 - flat.T[..., None]).square_().masked_fill_(~counted, math.inf)
    cells = pixels.clamp_(min=0)
    if stride > 1:
        cells = cells.div_(stride, rounding_mode="floor")
    columns, rows = cells[0].clamp_(max=w - 1), cells[1].clamp_(max=h - 1).mul_(w).add_(image[:, None] * (h * w))
    maps = xy.new_zeros(batch * h * w)
    step = max(1, CHUNK.get(xy.device.type, 1 << 22) // len(offsets) ** 2)
    for start in range(0, len(flat), step):
        part = slice(start, start + step)
        values = _kernels(d2[:, part], sigma, shape)  # [n, side, side], exactly 0 outside the image
        values = values.mul_(torch.where(keep[part], values.sum((1, 2)).reciprocal_(), 0.0)[:, None, None])
        if domain is not None:
            values = values.mul_(shown[1, part, :, None] & shown[0, part, None, :])
        maps.scatter_add_(0, (rows[part, :, None] + columns[part, None, :]).flatten(), values.flatten())
    return maps.view(batch, h, w)


def _kernels(d2: Tensor, sigma: float, shape: float) -> Tensor:
    """`ggd.kernel` at all pixels of windows whose squared distances along the two axes are `d2` [2, n, side].

    A fast path, in place and scaled before the axes meet; where all of a kernel underflows, it is divided by its largest value.
    """
    narrow = sigma < 0.75
    width = max(sigma, 1e-36 ** (1 / shape)) if narrow else sigma  # narrower is one pixel, and an overflow
    scaled = d2 / (2 * width * width)
    power = ggd.power_(scaled[1, :, :, None] + scaled[0, :, None, :], shape)
    if narrow:  # all of a kernel may underflow at the pixel centres: divide by its largest value first
        power = power.sub_(power.amin((1, 2), keepdim=True)).nan_to_num_(math.inf)
    return power.neg_().exp_()


def dot_maps(points: PointBatch, size: tuple[int, int], stride: int = 1) -> Tensor:
    """Number of points in each cell, [B, ceil(H/stride), ceil(W/stride)]; duplicates add up, outside points are left out.

    >>> dot_maps(PointBatch.from_list([torch.tensor([[3.0, 9.0], [3.0, 9.0]])]), (16, 16), stride=8)[0]
    tensor([[0., 0.],
            [2., 0.]])
    """
    h, w = -(-size[0] // stride), -(-size[1] // stride)
    keep = points.valid & inside(points.xy, size)
    cell = (points.xy / stride).floor().long()
    index = (cell[..., 1] * w + cell[..., 0]).clamp(0, h * w - 1)
    maps = points.xy.new_zeros(len(points), h * w)
    return maps.scatter_add_(1, index, keep.to(maps.dtype)).view(-1, h, w)


def touched_cells(mask: Tensor, stride: int) -> Tensor:
    """bool [B, ceil(H/stride), ceil(W/stride)]: cells with at least one pixel of a mask [B, H, W].

    >>> touched_cells(torch.eye(5, dtype=torch.bool)[None], 2)[0].int()
    tensor([[1, 0, 0],
            [0, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    cells = torch.nn.functional.max_pool2d(mask[:, None].float(), stride, ceil_mode=True)
    return cells[:, 0] > 0
