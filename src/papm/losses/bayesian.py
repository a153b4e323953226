"""The Bayesian loss (BL): every cell asks which point it belongs to, and the density that belongs to a point sums to one.

    p_i(x) = e^(-‖x - p_i‖²/2σ²) / Σ over points and the background of the same,
    ℓ = Σ_points |t_i - ⟨p_i, z⟩| + |⟨p_bg, z⟩|

The background is one more row, at a pseudo distance that is large near the points and small far from them. With d the
distance to the nearest point and D = ρ × the short side of the whole image, its square is

    (D - d)²             form="paper", ρ = 0.15: the paper, and the code of MAN and M-SFANet
    D²/(d² + 1e-5)       form="released", ρ = 1: the code that BL's authors published

MAN's instance attention leaves out the tenth of the points that fit worst, which may be wrong annotations (`trim`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from papm.errors import ConfigError
from papm.losses.base import LossContext, masked, short_side, with_gradient
from papm.losses.registry import Function, FunctionLoss, register, variant
from papm.registry import AtLeastOne, Positive, Range
from papm.structures import LossOutput, PointBatch

Form = Literal["paper", "released"]
Border = Literal["whole", "ratio"]
RHO: dict[str, float] = {"paper": 0.15, "released": 1.0}  # BL's paper; BL's code

Trim = Annotated[float, Range("is the share of points left out, from 0 to less than 1", 0, 1 - 1e-9)]

CHUNK = 1 << 25  # entries of the posterior held at once, which bounds the memory at about 300 MB
BOX = (4.0, 128.0)  # px, least and largest side of the box around a point at a crop's border (BL's QNRF loader)
KEEP = 0.3  # a point of whose box less lies in the crop is left out (BL's QNRF loader)


def squared_distances(points: PointBatch, size: tuple[int, int], stride: int) -> Tensor:
    """[B, N, h·w], from points to cell centres in px²; infinite for padding, and at least one row.

    >>> squared_distances(PointBatch.from_list([torch.tensor([[4.0, 4.0]])]), (1, 2), 8)
    tensor([[[ 0., 64.]]])
    """
    xy, valid = torch.where(points.valid[..., None], points.xy, 0.0), points.valid
    if not xy.shape[1]:
        xy, valid = F.pad(xy, (0, 0, 0, 1)), F.pad(valid, (0, 1))
    x, y = ((torch.arange(n, device=xy.device, dtype=xy.dtype) + 0.5) * stride for n in (size[1], size[0]))
    columns = (xy[..., 0, None] - x).square()
    rows = (xy[..., 1, None] - y).square().masked_fill(~valid[..., None], torch.inf)
    return (rows[..., :, None] + columns[..., None, :]).flatten(2)


def posterior(
    points: PointBatch,
    size: tuple[int, int],
    stride: int,
    short_side: Tensor,
    sigma: float = 8.0,
    rho: float = 0.15,
    form: Form = "paper",
) -> tuple[Tensor, Tensor]:
    """To which point a cell belongs: p [B, N, h·w], and the background's share [B, h·w]; each cell's sum to one.

    `short_side` [B] is that of the whole image, in pixels. In an image without points everything is background.
    """
    d2 = squared_distances(points, size, stride)
    nearest = d2.amin(1)
    some = torch.isfinite(nearest)
    nearest = torch.where(some, nearest, 0.0)
    far = rho * short_side.to(nearest)[:, None]
    if form == "paper":
        pseudo = (far - nearest.sqrt()).square()
    else:
        pseudo = far.square() / (nearest + 1e-5)
    scale = -1 / (2 * sigma**2)
    background = torch.where(some, pseudo, 0.0) * scale
    # The largest exponent is taken out, so that a cell far from everything has shares too.
    top = torch.where(some, torch.maximum(nearest * scale, background), 0.0)
    share = d2.mul_(scale).sub_(top[:, None]).exp_()
    background = (background - top).exp()
    total = share.sum(1) + background
    return share.div_(total[:, None]), background / total


def counted_box(size: tuple[int, int], stride: int, context: LossContext | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """Corners (x, y) [B, 2] of the part of each crop that counts: that of its mask, or all of it."""
    end = torch.stack([like.new_full((len(like),), float(n * stride)) for n in (size[1], size[0])], -1)
    if context is None or context.mask is None:
        return torch.zeros_like(end), end
    axes = [context.mask.any(1), context.mask.any(2)]  # columns, rows: [B, W], [B, H]
    lower = torch.stack([a.to(torch.uint8).argmax(1) for a in axes], -1)
    upper = torch.stack([a.shape[1] - a.flip(1).to(torch.uint8).argmax(1) for a in axes], -1)
    return lower.to(like), upper.to(like)


def overlap(points: PointBatch, lower: Tensor, upper: Tensor) -> Tensor:
    """Share [B, N] of each point's box that lies between two corners [B, 2]; the side is its extent, clipped to `BOX`."""
    if points.extents is None:
        raise ConfigError(
            "border='ratio' of the Bayesian loss needs the spacing of the points (PointBatch.extents); "
            "give it, or use border='whole'"
        )
    side = points.extents.to(points.xy).clamp(*BOX)[..., None]
    inside = torch.minimum(points.xy + side / 2, upper[:, None]) - torch.maximum(points.xy - side / 2, lower[:, None])
    return (inside.clamp(min=0) / side).prod(-1)


def best(residuals: Tensor, valid: Tensor, trim: float) -> Tensor:
    """bool [B, N]: the valid points without the ⌊trim·n⌋ of the largest residuals.

    >>> best(torch.tensor([[3.0, 9.0, 1.0, 5.0, 0.0]]), torch.tensor([[True, True, True, True, False]]), 0.25)
    tensor([[ True, False,  True,  True, False]])
    """
    if not trim:
        return valid
    order = residuals.masked_fill(~valid, torch.inf).argsort(1)
    counts = valid.sum(1, keepdim=True)
    kept = counts - torch.floor(counts * trim + 1e-4).long()  # 1e-4: 0.1·30 may fall short of 3
    places = torch.arange(residuals.shape[1], device=residuals.device).expand_as(order)
    return torch.zeros_like(valid).scatter(1, order, places < kept)


def bayesian(
    density: Tensor,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    sigma: Positive = 8.0,
    rho: Positive | None = None,
    form: Form = "paper",
    border: Border = "whole",
    trim: Trim = 0.0,
    context: LossContext | None = None,
) -> LossOutput:
    """BL: Σ|t − ⟨p, z⟩| over points + |⟨p_bg, z⟩|, mean over images; p is the posterior of the points (Ma et al. 2019).

    Density z [B, 1, h, w], points B × [n, 2]; σ in input pixels; the module says what `form`, `rho` and `trim` are.
    `border="whole"` asks one of every point of the crop. `border="ratio"` is BL's rule for crops: t is the share of the
    point's box, whose side is its spacing, that lies in the crop; points with less than 0.3 are left out, points beyond
    the border with more come in.

    >>> from papm.losses import functional
    >>> functional.bayesian(torch.zeros(1, 1, 2, 2), [torch.tensor([[4.0, 4.0]])])
    tensor(1.)
    """
    density = masked(density, context, stride)
    size = (density.shape[-2], density.shape[-1])
    points = PointBatch(points.xy.to(density), points.valid, points.extents)
    points, wanted = targets(size, points, context, stride, border)
    points, wanted = PointBatch(points.xy.to(density), points.valid), wanted.to(density)
    short, rho = short_side(density, context, stride), RHO[form] if rho is None else rho
    z = density.flatten(1)
    step = max(1, CHUNK // max(1, points.xy.shape[1] * z.shape[1]))
    parts = []
    for s in (slice(k, k + step) for k in range(0, len(z), step)):
        some = PointBatch(points.xy[s], points.valid[s])
        with torch.no_grad():
            shares = posterior(some, size, stride, short[s], sigma, rho, form)
        parts.append(_terms(z[s], some, wanted[s], *shares, trim))
    return LossOutput.of({k: torch.cat([p[k] for p in parts]).mean() for k in ("points", "background")})


ial = variant(
    bayesian,
    "ial",
    """MAN's instance attention loss: `bayesian` without the tenth of the points that fit worst (Lin et al. 2022).

    Density [B, 1, h, w], points B × [n, 2]; the options are those of `bayesian`, with `trim` 0.1.

    >>> import torch
    >>> functional.ial(torch.zeros(1, 1, 2, 2), [torch.tensor([[4.0, 4.0]])])
    tensor(1.)
    """,
    trim=0.1,
)


def targets(
    size: tuple[int, int], points: PointBatch, context: LossContext | None, stride: int, border: Border
) -> tuple[PointBatch, Tensor]:
    """The points that matter and how much density [B, N] each should get."""
    if border == "whole":
        return points, points.valid.to(points.xy)
    if context is not None and context.halo is not None:
        points = context.halo
    share = overlap(points, *counted_box(size, stride, context, points.xy))
    valid = points.valid & (share >= KEEP)
    return PointBatch(points.xy, valid), torch.where(valid, share, 0.0)


def _terms(
    z: Tensor, points: PointBatch, wanted: Tensor, share: Tensor, rest: Tensor, trim: float
) -> dict[str, Tensor]:
    """Both terms [b] of some images. The posterior is freed with them: their gradient is known now."""
    with torch.no_grad():
        valid = points.valid if points.valid.shape[1] else F.pad(points.valid, (0, 1))
        wanted = wanted if wanted.shape[1] else F.pad(wanted, (0, 1))
        residual = wanted - torch.bmm(share, z.detach()[..., None])[..., 0]
        kept = best(residual.abs(), valid, trim)
        residual = torch.where(kept, residual, 0.0)
        pull = torch.bmm(residual.sign()[:, None], share)[:, 0]
        stray = (rest * z.detach()).sum(1)
        push = stray.sign()[:, None] * rest
    return {
        "points": with_gradient(residual.abs().sum(1), z, -pull),
        "background": with_gradient(stray.abs(), z, push),
    }


class BayesianLoss(FunctionLoss):
    """The module: with `border="ratio"` it wants the points around the crop."""

    def __init__(self, function: Function, stride: int = 8, **options: Any) -> None:
        super().__init__(function, stride, **options)
        # A box reaches 30 % into the crop from a centre at most a fifth of its side outside.
        self.halo = (0.5 - KEEP) * BOX[1] if self.options["border"] == "ratio" else 0.0


register("bl", bayesian, BayesianLoss)
register("ial", ial, BayesianLoss)
