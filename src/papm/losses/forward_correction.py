"""Forward correction: any loss on maps, for dots that are known to lie some distance away from their objects.

A loss that fits the map to displaced dots is least for a map of the displaced dots. If the law q of the displacement is
known, the map can be displaced as the dots were, and the loss sees where dots are to be expected:

    (q * z)(y) = Σ_x z(x)·q(y - x)/Q(x),     Q(x) = Σ_{y in the image} q(y - x)

so that the true map, not that of the dots, explains them best. Q is the rule of `points.displace` at the border of an image,
where a dot that would land outside is drawn again. The border of a crop is no such border: what crosses it is lost.
"""

from __future__ import annotations

import functools
import math
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from papm.errors import ConfigError, unknown
from papm.losses.base import CountingLoss, LossContext, PointLoss, WrappingLoss, cell_mask
from papm.structures import LossOutput, PointBatch

KnownKind = Literal["ring", "disc", "gaussian"]

TAIL = 4.5  # a Gaussian is cut here, in σ: 7e-6 of its mass lies farther along an axis
ANGLES, RADII = 1 << 16, 256  # of the quadrature; against scipy's the kernels are exact to 1e-6 (tests)
NOWHERE = 1e-6  # a head whose dot lands in the image less often than this has no dot


@functools.lru_cache(maxsize=32)
def displacement_kernel(distance: float, kind: KnownKind, stride: int) -> Tensor:
    """Law of the cell a dot lands in, relative to the cell its head is in: float64 [2r+1, 2r+1], rows are y, sum 1.

    The head lies anywhere in its cell of `stride` pixels, so that a displacement (dx, dy) ends in cell (i, j) with
    probability Λ(dx/stride - i)·Λ(dy/stride - j), Λ(t) = max(0, 1 - |t|). `distance` is what it is for `points.displace`:
    the radius of a `ring` or `disc`, the σ of a `gaussian` along each axis.

    >>> [[round(p, 3) for p in row] for row in displacement_kernel(4.0, "ring", 8).tolist()]
    [[0.02, 0.119, 0.02], [0.119, 0.443, 0.119], [0.02, 0.119, 0.02]]
    """
    if kind not in get_args(KnownKind):
        raise unknown("displacement", kind, get_args(KnownKind))
    if not (math.isfinite(distance) and distance >= 0):
        raise ConfigError(f"a displacement must be a finite number of pixels ≥ 0, not {distance}")
    cells = distance / stride
    if cells == 0:
        return torch.ones(1, 1, dtype=torch.float64)
    if kind == "gaussian":
        along = _gaussian(cells)
        made = along[:, None] * along[None]
    elif kind == "ring":
        made = _rings(np.array([cells]), np.array([1.0]), ANGLES)
    else:  # a disc is made of rings, those of radius r with weight 2r
        places, weights = np.polynomial.legendre.leggauss(RADII)
        radii = cells * (1 + places) / 2
        made = _rings(radii, weights * radii, ANGLES // 16)
    made = (made + made[::-1] + made[:, ::-1] + made[::-1, ::-1]) / 4
    made = made + made.T
    return torch.from_numpy(made / made.sum())


def _gaussian(cells: float) -> NDArray[np.float64]:
    """E Λ(σg - i) for i = -r … r: the second difference of E(σg - i)₊ = σφ(i/σ) - i·Φ(-i/σ)."""
    r = math.ceil(TAIL * cells)
    i = np.arange(-r - 1, r + 2) / cells
    above = cells * (np.exp(-(i**2) / 2) / math.sqrt(2 * math.pi) - i * ndtr(-i))
    made: NDArray[np.float64] = np.clip(np.diff(above, 2), 0, None)
    return made


def _rings(radii: NDArray[np.float64], weights: NDArray[np.float64], angles: int) -> NDArray[np.float64]:
    """Rings of these radii (in cells) and weights: every displacement is shared by the four cells around it."""
    r = math.ceil(float(radii.max()))
    angle = (np.arange(angles) + 0.5) * (2 * math.pi / angles)
    x, y = (radii[:, None] * f(angle) + r for f in (np.cos, np.sin))
    i, j = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    side = 2 * r + 2
    made = np.zeros(side * side)
    for down in (0, 1):
        for right in (0, 1):
            share = (1 - np.abs(x - i - right)) * (1 - np.abs(y - j - down)) * weights[:, None]
            made += np.bincount(((j + down) * side + i + right).ravel(), share.ravel(), minlength=side * side)
    return made.reshape(side, side)[:-1, :-1]  # no displacement is longer than r


class ForwardLoss(WrappingLoss):
    """`loss` on the map displaced as the dots were: by `distance` pixels, on a `ring`, in a `disc`, or `gaussian`.

    With `LossContext.offsets` and `.sizes` the border of the image is known, else the crop is the image. Where the mask says
    that nothing counts there are no heads either, but for a frame of `margin` pixels: heads in it have dots in the crop.

    >>> from papm.losses import create
    >>> z = torch.zeros(1, 1, 16, 16)
    >>> z[0, 0, 8, 8] = 3.0
    >>> moved = ForwardLoss(create("al-papm", stride=8), 32.0, "ring").displaced(z)
    >>> [round(v, 2) for v in (float(moved.sum()), float(moved[0, 0, 8, 8]), float(moved[0, 0, 8, 12]))]
    [3.0, 0.0, 0.12]
    """

    def __init__(self, loss: CountingLoss, distance: float, kind: KnownKind = "ring", margin: int = 0) -> None:
        if isinstance(loss, PointLoss):
            raise ConfigError("a correction of displaced dots is for losses on density maps; this one matches points")
        if margin < 0 or margin % loss.stride:
            raise ConfigError(f"margin={margin} must be a multiple of the map's stride {loss.stride}, and not negative")
        super().__init__(loss, loss.maps)
        self.distance, self.kind, self.margin = float(distance), kind, int(margin)
        displacement_kernel(self.distance, self.kind, self.stride)  # refuses what it cannot be made of
        self._kept: dict[tuple[float, str, torch.dtype, torch.device], Tensor] = {}

    def kernel(self, like: Tensor) -> Tensor:
        """The kernel [1, 1, 2r+1, 2r+1] on the device of `like`; copied there once."""
        # A convolution in float32 may be rounded to ten bits on a GPU (TF32), which would lose mass.
        dtype = torch.float64 if like.is_cuda else like.dtype
        key = (self.distance, self.kind, dtype, like.device)
        if key not in self._kept:
            made = displacement_kernel(self.distance, self.kind, self.stride)
            self._kept[key] = made.to(like.device, dtype)[None, None]
        return self._kept[key]

    def displaced(self, density: Tensor, context: LossContext | None = None) -> Tensor:
        """Where the dots of a map are to be expected: q * z, [B, C, h, w]. Mass is kept where the whole image is seen."""
        kernel = self.kernel(density)
        r, (h, w) = kernel.shape[-1] // 2, density.shape[-2:]
        image = self._image(density, context, r).to(kernel.dtype)  # [B or 1, 1, h + 2r, w + 2r]
        lands = F.conv2d(image, kernel)  # Q
        # Nothing stands outside the image, and what cannot land in it is dropped, as `points.displace` does.
        inside = image[..., r : r + h, r : r + w]
        stands = ((inside > 0) & (lands > NOWHERE)) / lands.clamp(min=NOWHERE)
        counts = self._counts(density, context)
        if counts is not None:
            stands = stands * counts
        heads = density.to(kernel.dtype) * stands
        moved = F.conv2d(heads.flatten(0, 1)[:, None], kernel, padding=r).view_as(heads)
        return (moved * inside).to(density.dtype)

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        return self.inner(self.displaced(density, context), points, context)

    def _image(self, density: Tensor, context: LossContext | None, r: int) -> Tensor:
        """The share of each cell that lies in the image, of the crop and `r` cells around it."""
        h, w = density.shape[-2:]
        if context is None or context.offsets is None or context.sizes is None:
            corner = density.new_zeros(1, 2)
            sides = [density.new_full((1,), float(n * self.stride)) for n in (w, h)]
        else:
            corner, sides = context.offsets.to(density.dtype), [*context.sizes.to(density.dtype).flip(-1).unbind(1)]
        across, down = (
            _share(n, r, self.stride, corner[:, k, None], side[:, None])
            for k, (n, side) in enumerate(zip((w, h), sides))
        )
        return (down[:, :, None] * across[:, None, :])[:, None]

    def _counts(self, density: Tensor, context: LossContext | None) -> Tensor | None:
        """1 where there may be heads, as far as the mask tells: it says nothing about the margin."""
        mask = cell_mask(context, density, self.stride)
        if mask is None or not self.margin:
            return mask
        m, (h, w) = self.margin // self.stride, density.shape[-2:]
        y, x = (torch.arange(n, device=density.device) for n in (h, w))
        frame = ((y < m) | (y >= h - m))[:, None] | ((x < m) | (x >= w - m))[None]
        return torch.maximum(mask, frame.to(mask.dtype))

    def extra_repr(self) -> str:
        return f"distance={self.distance}, kind={self.kind}, margin={self.margin}"


def _share(cells: int, r: int, stride: int, corner: Tensor, side: Tensor) -> Tensor:
    """Share of cells -r … cells+r-1 of an axis that lies within 0 … side, [B, cells + 2r]; cell 0 begins at `corner`."""
    begin = torch.arange(-r, cells + r, device=corner.device, dtype=corner.dtype) * stride + corner
    return ((begin + stride).minimum(side) - begin.clamp(min=0)).clamp(min=0) / stride
