"""NoiseCC: the likelihood of a density map when the annotator's hand shook.

Each true point is its dot less an error N(0, αI); the map of the true points has Gaussian kernels of variance β. Over
the error the map then has, with N(r; s) the 2-D Gaussian of variance s,

    mean         μ(x)     = Σ_i N(x - p_i; α + β)
    variance     v(x)     = Σ_i N(x - p_i; α + β/2)/4πβ - N(x - p_i; α + β)²
    covariance   c(x, x') = Σ_i N(x - x'; 2β)·N((x + x')/2 - p_i; α + β/2) - N(x - p_i; α + β)·N(x' - p_i; α + β)

and the loss is ½(z - μ)ᵀ Σ⁻¹ (z - μ). Σ is diagonal but for the block of the cells that vary most: those that make up
60 % of Σv, at most 100, ranked by v without the background. A density at a cell's centre times the cell's area is what
the cell holds, so μ carries S², v and c carry S⁴. Mass beyond the border is made up for: μ is multiplied by f = n/Σμ,
Σ by f².

Where there are no points v would vanish and forbid any density. So v has a background, as in the authors' code: the first
part of v, the expected square N(r; α + β/2)/4πβ, of one more point at distance r = D·e^(-d/√(α+β)) from the cell; d is the
distance to the nearest point, D = 0.15 × the image's short side. That point adds nothing to μ, so no mean is subtracted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from papm.losses.base import LossContext, cell_mask, masked, short_side, with_gradient
from papm.losses.bayesian import CHUNK, squared_distances
from papm.losses.registry import register
from papm.registry import AtLeastOne, Positive, Share, Whole
from papm.structures import LossOutput, PointBatch

FLOOR = 1e-14  # px⁻⁴, added to the variance (NoiseCC's)


def _profiles(points: PointBatch, size: tuple[int, int], stride: int, variance: float) -> tuple[Tensor, Tensor]:
    """e^(-(y - y_i)²/2s) [B, N, h] and the same along x [B, N, w]: a Gaussian is the product of the two."""
    made = []
    for axis, n in ((1, size[0]), (0, size[1])):
        cells = (torch.arange(n, device=points.xy.device, dtype=points.xy.dtype) + 0.5) * stride
        made.append(torch.exp((cells - points.xy[..., axis, None]).square() / (-2 * variance)))
    return made[0] * points.valid[..., None], made[1]


def moments(
    points: PointBatch, size: tuple[int, int], stride: int, alpha: float = 64.0, beta: float = 64.0
) -> tuple[Tensor, Tensor]:
    """Mean and variance [B, h, w] of what each cell holds, without the background."""

    def summed(variance: float) -> Tensor:
        rows, columns = _profiles(points, size, stride, variance)
        return torch.einsum("bnh,bnw->bhw", rows, columns)

    wide, narrow, area = alpha + beta, alpha + beta / 2, stride**2
    mean = summed(wide) / (2 * math.pi * wide) * area
    # The square of a Gaussian is one of half the variance.
    square = summed(narrow) / (2 * math.pi * narrow * 4 * math.pi * beta)
    return mean, (square - summed(wide / 2) / (2 * math.pi * wide) ** 2).clamp(min=0) * area**2


def covariance(points: PointBatch, cells: Tensor, stride: int, alpha: float = 64.0, beta: float = 64.0) -> Tensor:
    """Covariance [B, M, M] of what the cells with those centres [B, M, 2] hold.

    ‖(x+x')/2 - p‖² = ½‖x - p‖² + ½‖x' - p‖² - ¼‖x - x'‖², so that the sum over points is a product of two matrices.
    """
    wide, narrow = alpha + beta, alpha + beta / 2
    d2 = (points.xy[:, :, None] - cells[:, None]).square().sum(-1)  # [B, N, M]
    apart = (cells[:, :, None] - cells[:, None]).square().sum(-1)

    def gram(variance: float) -> Tensor:
        g = torch.exp(d2 / (-2 * variance)) * points.valid[..., None]
        return torch.bmm(g.mT, g)

    square = gram(2 * narrow) * torch.exp(apart * (1 / (8 * narrow) - 1 / (4 * beta)))
    square = square / (2 * math.pi * narrow * 4 * math.pi * beta)
    return (square - gram(wide) / (2 * math.pi * wide) ** 2) * stride**4


def background_variance(nearest: Tensor, short: Tensor, stride: int, alpha: float, beta: float, rho: float) -> Tensor:
    """Expected square [B, m] of one more point, far from cells that have a point near (squared distance `nearest` [B, m])."""
    narrow = alpha + beta / 2
    d2 = (rho * short[:, None] * torch.exp(-nearest.sqrt() / math.sqrt(alpha + beta))).square()
    return torch.exp(d2 / (-2 * narrow)) / (2 * math.pi * narrow * 4 * math.pi * beta) * stride**4


def noisecc(
    density: Tensor,
    points: PointBatch,
    *,
    stride: AtLeastOne = 8,
    noise: Positive = 8.0,
    sigma: Positive = 8.0,
    weight: Positive = 0.01,
    rho: Positive = 0.15,
    rank: Whole = 100,
    share: Share = 0.6,
    jitter: Positive = 1e-3,
    context: LossContext | None = None,
) -> LossOutput:
    """NoiseCC: weight·½(z − μ)ᵀΣ⁻¹(z − μ), mean over images; one without points costs |Σz| (Wan and Chan 2020).

    Density z [B, 1, h, w], points B × [n, 2]. `noise` is √α and `sigma` √β, in pixels; `rank` and `share` say how many cells
    have their covariance; `jitter` is added to the correlations' diagonal: neighbouring cells move so much together that the
    block is nearly singular.

    >>> from papm.losses import functional
    >>> functional.noisecc(torch.full((1, 1, 2, 2), 0.25), [torch.zeros(0, 2)])
    tensor(1.)
    """
    noise_model = Noise(stride, noise**2, sigma**2, rho, rank, share, jitter)
    mask = cell_mask(context, density, stride)
    density = masked(density, context, stride)
    z, size = density.flatten(1), (density.shape[-2], density.shape[-1])
    # In float64: the block is close to singular.
    exact = PointBatch(torch.where(points.valid[..., None], points.xy, 0.0).double(), points.valid)
    short = short_side(density, context, stride).double()
    mean, variance, own = noise_model.distribution(exact, size, short, mask)
    some = points.valid.any(1)
    factor = (points.valid.sum(1) / mean.sum(1).clamp(min=1e-6))[:, None]
    factor = torch.where(some[:, None], factor, 1.0)
    residual = torch.where(some[:, None], z.detach().double() - mean * factor, 0.0)
    if mask is not None:
        residual = residual * mask.flatten(1)
    gradient = noise_model.precision_times(residual / factor, variance, own, exact, size[1]) / factor
    value = 0.5 * (gradient * residual).sum(1)
    terms = {
        "likelihood": with_gradient(value.to(z), z, gradient.to(z)).mean(),
        "empty": torch.where(some, 0.0, z.sum(1).abs()).mean(),
    }
    return LossOutput.of(terms, {"likelihood": weight, "empty": 1.0})


@dataclass(frozen=True)
class Noise:
    """The law of the map: variances α of the noise and β of the kernels, and how much of its covariance is kept."""

    stride: int = 8
    alpha: float = 64.0
    beta: float = 64.0
    rho: float = 0.15
    rank: int = 100
    share: float = 0.6
    jitter: float = 1e-3

    @torch.no_grad()
    def distribution(
        self, points: PointBatch, size: tuple[int, int], short: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance [B, m] of what each cell holds, and the part of the variance that is the points' own, without
        background and floor; cells that do not count have zeros."""
        mean, variance = (t.flatten(1) for t in moments(points, size, self.stride, self.alpha, self.beta))
        step = max(1, CHUNK // max(1, points.xy.shape[1] * mean.shape[1]))
        parts = (PointBatch(points.xy[k : k + step], points.valid[k : k + step]) for k in range(0, len(mean), step))
        nearest = torch.cat([squared_distances(p, size, self.stride).amin(1) for p in parts])
        background = background_variance(nearest, short, self.stride, self.alpha, self.beta, self.rho)
        whole = variance + background + FLOOR * self.stride**4
        if mask is not None:
            mean, whole, variance = (t * mask.flatten(1) for t in (mean, whole, variance))
        return mean, whole, variance

    @torch.no_grad()
    def precision_times(
        self, residual: Tensor, variance: Tensor, own: Tensor, points: PointBatch, width: int
    ) -> Tensor:
        """Σ⁻¹(z - μ), [B, m]; `own`, the points' part of the variance, says which cells have their covariance."""
        counts = variance > 0
        scaled = torch.where(counts, residual / variance.clamp(min=torch.finfo(variance.dtype).tiny), 0.0)
        rank = min(self.rank, variance.shape[1])
        if rank < 2:
            return scaled
        top, index = own.topk(rank, dim=1)
        before = top.cumsum(1) - top
        member = (before < self.share * own.sum(1, keepdim=True)) & (top > 0)
        centres = torch.stack([index % width + 0.5, index // width + 0.5], -1).to(variance) * self.stride
        # Correlations: a unit diagonal, so that one jitter suits every density. Cells of no member stay by themselves.
        scale = torch.where(member, variance.gather(1, index).clamp(min=torch.finfo(top.dtype).tiny).rsqrt(), 0.0)
        block = covariance(points, centres, self.stride, self.alpha, self.beta)
        block = block * scale[:, :, None] * scale[:, None]
        unit = torch.eye(rank, device=block.device, dtype=torch.bool)
        block = torch.where(unit, 1 + self.jitter, block)
        # Not `cholesky`: it would wait for the device to learn whether it worked.
        factor = torch.linalg.cholesky_ex(block)[0]
        right = (residual.gather(1, index) * scale)[..., None]
        half = torch.linalg.solve_triangular(factor, right, upper=False)
        solved = torch.linalg.solve_triangular(factor.mT, half, upper=True)[..., 0] * scale
        return scaled.scatter(1, index, torch.where(member, solved, scaled.gather(1, index)))


register("noisecc", noisecc)
