"""The generalized Gaussian: how far from an object's centre a person may click and still mean that object.

    k(r) = exp(-(r² / 2σ²)^(s/2))

σ is the bandwidth in pixels; s the shape: s = 2 is the Gaussian, a larger s flattens the top, so that s = 8 is nearly a
disc of radius σ√2. One kernel, three uses: as a learning target (`targets`), a transport cost and a matching cost.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from papm.structures import as_tensor

# The largest cost that is still an ordinary float32 after a sum over a few thousand points. At the regularisation in use
# (10), exp(-cost/reg) is exactly zero in float32 beyond a cost of about 1040, so a cap this high changes no plan.
COST_CAP = 1e30


def exponent(r2: Tensor | ArrayLike, sigma: float | Tensor, shape: float) -> Tensor:
    """(r²/2σ²)^(s/2), any tensor or array."""
    t = as_tensor(r2) / (2 * sigma * sigma)
    return t.pow(shape / 2) if t.requires_grad else power_(t, shape)  # autograd needs what `power_` overwrites


def power_(t: Tensor, shape: float) -> Tensor:
    """t^(s/2) in place, by squaring for the shapes in use: many times faster than pow."""
    if shape in (2, 4, 8, 16):
        for _ in range(int(math.log2(shape)) - 1):
            t = t.mul_(t)
        return t
    return t.sqrt_() if shape == 1 else t.pow_(shape / 2)


def kernel(r2: Tensor | ArrayLike, sigma: float | Tensor, shape: float) -> Tensor:
    """k = exp(-(r²/2σ²)^(s/2)) at squared distances `r2` (any shape); `sigma` may be a tensor that broadcasts with it.

    Here and below an array of numpy does as well as a tensor, and what comes back is a tensor.

    >>> kernel(torch.tensor([0.0, 32.0]), sigma=4.0, shape=8.0)
    tensor([1.0000, 0.3679])
    """
    t = exponent(r2, sigma, shape)
    return torch.exp(-t) if t.requires_grad else t.neg_().exp_()


def normalizer(sigma: float, shape: float) -> float:
    """K with ∫∫ K·k(r) dx dy = 1 in two dimensions: K = s / (4πσ² Γ(2/s)).

    The paper prints two other normalisers of which neither makes its kernel sum to one: docs/method.md.

    >>> math.isclose(normalizer(4.0, 2.0), 1 / (2 * math.pi * 16))
    True
    """
    return shape / (4 * math.pi * sigma**2 * math.gamma(2 / shape))


def pdf(x: Tensor | ArrayLike, sigma: float, shape: float, scatter: Tensor | None = None) -> Tensor:
    """The multivariate generalized Gaussian density of the paper's eq. (1), at vectors `x` [..., D].

        p(x) = Γ(D/2) / (π^(D/2) Γ(D/2s) 2^(D/2s)) · s / (σ^D |Σ|^½) · exp(-½ (xᵀΣ⁻¹x / σ²)^s)

    `scatter` Σ [D, D] turns and stretches it, for oriented or elongated objects; the identity by default. Mind the two
    conventions: here the Gaussian is shape 1, in `kernel` it is shape 2. `kernel(·, σ, s)` is this density up to its
    factor with shape s/2 and bandwidth σ·√2·2^(-1/s).

    >>> pdf(torch.zeros(1, 2), 1.0, 1.0)
    tensor([0.1592])
    """
    x = as_tensor(x)
    d = x.shape[-1]
    if scatter is None:
        q, logdet = x.square().sum(-1), torch.zeros((), dtype=x.dtype, device=x.device)
    else:
        factor = torch.linalg.cholesky(scatter.to(x))
        white = torch.linalg.solve_triangular(factor, x.reshape(-1, d).T, upper=False)
        q = white.square().sum(0).reshape(x.shape[:-1])
        logdet = 2 * factor.diagonal().log().sum()
    log_scale = (
        math.lgamma(d / 2)
        - d / 2 * math.log(math.pi)
        - math.lgamma(d / (2 * shape))
        - d / (2 * shape) * math.log(2)
        + math.log(shape)
        - d * math.log(sigma)
    )
    return torch.exp(log_scale - logdet / 2 - (q / sigma**2).pow(shape) / 2)


def inverse_kernel(r2: Tensor | ArrayLike, sigma: float | Tensor, shape: float) -> Tensor:
    """1/k = exp((r²/2σ²)^(s/2)), at most e⁸⁰ = 5.5e34, which is finite in float32.

    >>> inverse_kernel(torch.tensor([0.0, 512.0, 1e8]), 16.0, 2.0)
    tensor([1.0000e+00, 2.7183e+00, 5.5406e+34])
    """
    return torch.exp(exponent(r2, sigma, shape).clamp(max=80.0))


def support_radius(sigma: float, shape: float, tolerance: float = 1e-8) -> float:
    """Distance at which the kernel falls to `tolerance`: σ√2·(-ln ε)^(1/s).

    >>> round(support_radius(4.0, 8.0), 1)
    8.1
    """
    return sigma * math.sqrt(2) * math.pow(-math.log(tolerance), 1 / shape)


def transport_cost(r2: Tensor | ArrayLike, sigma: float | Tensor, shape: float, cap: float = COST_CAP) -> Tensor:
    """GGD-L2, the cost of AL-PAPM and P2P-PAPM: r² / k(r) = r²·exp((r²/2σ²)^(s/2)), at most `cap`.

    The exact value overflows float32 at 200 px for σ=16, s=2 and far earlier for the paper's sweeps, so the exponent is
    bounded before the exponential; the result is finite for every distance and grows with it up to the cap. Half precision
    comes back as float32: float16 could hold the cost up to 43 px only.

    >>> transport_cost(torch.tensor([0.0, 64.0, 1e8]), 16.0, 2.0)
    tensor([0.0000e+00, 7.2521e+01, 1.0000e+30])
    """
    r2 = as_tensor(r2)
    r2 = r2.float() if r2.dtype in (torch.float16, torch.bfloat16) else r2
    return (r2 * inverse_kernel(r2, sigma, shape)).clamp(max=cap)


def radius(u: Any, sigma: Any, shape: float) -> Any:
    """The distance r at which (r²/2σ²)^(s/2) is u: σ√2·u^(1/s), of tensors or arrays.

    A vector drawn from the density proportional to k(r) has a u that follows a Gamma(2/s) law.
    """
    return math.sqrt(2) * u ** (1 / shape) * sigma


def sample(n: int, sigma: float | Tensor, shape: float, generator: torch.Generator | None = None) -> Tensor:
    """n displacement vectors [n, 2] drawn from the two-dimensional density proportional to k(r).

    `radius` of a Gamma(2/s) variate, at a uniform angle.
    """
    gamma = torch._standard_gamma(torch.full((n,), 2 / shape, dtype=torch.float64), generator=generator)
    r = radius(gamma, sigma, shape)
    angle = 2 * math.pi * torch.rand(n, generator=generator, dtype=torch.float64)
    return torch.stack([r * torch.cos(angle), r * torch.sin(angle)], -1)
