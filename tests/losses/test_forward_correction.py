"""Forward correction: the law of a displacement between cells, borders of images and crops, and what the loss is least for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from papm import losses
from papm.errors import ConfigError, PapmError
from papm.losses import LossContext
from papm.losses.base import CountingLoss
from papm.losses.classes import ClassLoss
from papm.losses.forward_correction import ForwardLoss, KnownKind, displacement_kernel
from papm.points import displace
from papm.structures import LossOutput, PointBatch
from papm.targets import dot_maps
from papm.transport import grid_sinkhorn

KINDS: tuple[KnownKind, ...] = ("ring", "disc", "gaussian")
STRIDE = 8


# -- the kernel -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("distance", "stride"), [(32.0, 8), (12.0, 8), (3.0, 8), (5.5, 1), (16.0, 16), (7.0, 4)])
def test_a_kernel_is_a_law_that_knows_no_direction(kind: KnownKind, distance: float, stride: int) -> None:
    q = displacement_kernel(distance, kind, stride)
    assert q.shape[0] == q.shape[1] and q.shape[0] % 2 == 1 and q.dtype == torch.float64
    assert (q >= 0).all() and float(q.sum()) == pytest.approx(1, abs=1e-12)
    for turned in (q.flip(0), q.flip(1), q.T):
        torch.testing.assert_close(turned, q, rtol=0, atol=1e-14)
    # Its variance is that of the displacement, and what counting in cells adds.
    i = (torch.arange(len(q)) - len(q) // 2).double() * stride
    per_axis = {"ring": distance**2 / 2, "disc": distance**2 / 4, "gaussian": distance**2}[kind]
    assert float(q.sum(0) @ i**2) == pytest.approx(per_axis + spread(distance, kind, stride), rel=2e-3)


def spread(distance: float, kind: KnownKind, stride: int) -> float:
    """E of S²·f(1 - f), f the fraction of a cell that a displacement has over whole ones."""
    rng = np.random.default_rng(0)
    zero = torch.zeros(400_000, 2)
    dx = displace(zero, (1, 1), distance, kind, rng, edge="free")[0][:, 0].double() / stride
    f = dx - dx.floor()
    return float((f * (1 - f)).mean()) * stride**2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("distance", "stride"), [(32.0, 8), (10.0, 8), (4.0, 2)])
def test_the_kernel_is_where_displace_puts_dots(kind: KnownKind, distance: float, stride: int) -> None:
    """A million heads anywhere in a cell, moved by `points.displace`: every cell to five standard errors."""
    n, rng = 1_000_000, np.random.default_rng(7)
    q = displacement_kernel(distance, kind, stride)
    r = len(q) // 2
    heads = torch.from_numpy(rng.uniform(0, stride, (n, 2)))
    dots, kept = displace(heads, (1, 1), distance, kind, rng, edge="free")
    assert len(kept) == n
    x, y = torch.floor(dots.double() / stride).long().unbind(1)
    inside = (x.abs() <= r) & (y.abs() <= r)
    assert inside.float().mean() > (1 - 3e-5 if kind == "gaussian" else 0.999999)
    found = torch.bincount((y[inside] + r) * (2 * r + 1) + x[inside] + r, minlength=q.numel()).view_as(q) / n
    error = (q * (1 - q) / n).sqrt() + 1e-6
    assert ((found - q).abs() / error).max() < 5


def tent(t: float) -> float:
    return max(0.0, 1 - abs(t))


def area(t: float) -> float:
    """∫ of the tent up to t."""
    t = min(1.0, max(-1.0, t))
    return (1 + t) ** 2 / 2 if t < 0 else 1 - (1 - t) ** 2 / 2


def by_quadrature(cells: float, kind: KnownKind, i: int, j: int) -> float:
    """One entry of the kernel as an integral over the displacement, by scipy."""
    if kind == "gaussian":
        along = []
        for k in (i, j):
            low, high = float(k - 1), float(k + 1)
            pdf: Callable[[float], float] = lambda x: math.exp(-((x / cells) ** 2) / 2) / cells / math.sqrt(2 * math.pi)  # noqa: E731
            along.append(quad(lambda x, k=k, pdf=pdf: tent(x - k) * pdf(x), low, high, points=[k], limit=200)[0])
        return float(along[0] * along[1])
    if kind == "ring":
        kinks = [
            a
            for n in range(-int(cells) - 1, int(cells) + 2)
            if abs(n) <= cells
            for b in (math.acos(n / cells), math.asin(n / cells))
            for a in (b % (2 * math.pi), -b % (2 * math.pi), (math.pi - b) % (2 * math.pi))
        ]

        def density(a: float) -> float:
            return tent(cells * math.cos(a) - i) * tent(cells * math.sin(a) - j) / (2 * math.pi)

        edges = sorted({0.0, 2 * math.pi, *(round(a, 12) for a in kinks)})
        return float(sum(quad(density, low, high)[0] for low, high in itertools.pairwise(edges)))

    def column(x: float) -> float:
        half = math.sqrt(max(0.0, cells**2 - x**2))
        return tent(x - i) * (area(half - j) - area(-half - j)) / (math.pi * cells**2)

    low, high = max(-cells, i - 1), min(cells, i + 1)
    return 0.0 if high <= low else float(quad(column, low, high, points=[i] if low < i < high else None, limit=400)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [4.0, 1.3, 0.4])
def test_the_kernel_is_the_integral(kind: KnownKind, cells: float) -> None:
    q = displacement_kernel(8 * cells, kind, 8)
    r = len(q) // 2
    for i, j in ((0, 0), (1, 0), (1, 1), (2, 1), (3, 3), (4, 0), (4, 1)):
        if max(i, j) <= r:
            assert float(q[r + j, r + i]) == pytest.approx(by_quadrature(cells, kind, i, j), abs=1e-6), (i, j)


def test_no_displacement_is_no_kernel() -> None:
    for kind in KINDS:
        assert displacement_kernel(0.0, kind, 8).tolist() == [[1.0]]
        assert float(displacement_kernel(1e-3, kind, 8)[1, 1]) == pytest.approx(1, abs=1e-3)


# -- the map ----------------------------------------------------------------------------------------------------------


def corrected(name: str = "sc", distance: float = 20.0, kind: KnownKind = "ring", margin: int = 0) -> ForwardLoss:
    return ForwardLoss(losses.create(name, stride=STRIDE), distance, kind, margin)


def by_the_formula(z: Tensor, q: Tensor, image: Tensor) -> Tensor:
    """Σ_x z(x)·q(y - x)/Q(x) cell by cell; `image` says which cells of a larger grid lie in the image, z is its middle."""
    r = len(q) // 2
    h, w = z.shape
    padded = torch.zeros(h + 2 * r, w + 2 * r, dtype=z.dtype)
    for y in range(h):
        for x in range(w):
            if image[y + r, x + r]:
                window = q * image[y : y + 2 * r + 1, x : x + 2 * r + 1]
                padded[y : y + 2 * r + 1, x : x + 2 * r + 1] += z[y, x] * window / window.sum()
    return padded[r : r + h, r : r + w]


@pytest.mark.parametrize("kind", KINDS)
def test_the_displaced_map_is_the_formula(kind: KnownKind) -> None:
    z = torch.rand(9, 12, dtype=torch.float64)
    loss = corrected(distance=14.0, kind=kind)
    q = displacement_kernel(14.0, kind, STRIDE)
    r = len(q) // 2
    image = torch.nn.functional.pad(torch.ones(9, 12, dtype=torch.float64), (r, r, r, r))
    whole = loss.displaced(z[None, None])[0, 0]
    torch.testing.assert_close(whole, by_the_formula(z, q, image))
    # The crop begins 5 cells right of and 2 above an image of 7 rows and 30 columns: both its borders are in the crop.
    context = LossContext(offsets=torch.tensor([[5.0 * 8, -2.0 * 8]]), sizes=torch.tensor([[7.0 * 8, 30.0 * 8]]))
    rows = (torch.arange(-r, 9 + r) >= 2) & (torch.arange(-r, 9 + r) < 9)
    columns = (torch.arange(-r, 12 + r) >= -5) & (torch.arange(-r, 12 + r) < 25)
    image = (rows[:, None] & columns[None]).double()
    found = loss.displaced(z[None, None], context)[0, 0]
    torch.testing.assert_close(found, by_the_formula(z, q, image))
    assert not found[:2].any() and not torch.allclose(found, whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stride", [1, 4, 8, 16])
def test_no_mass_is_lost_where_the_image_is_seen_whole(kind: KnownKind, stride: int) -> None:
    generator = torch.Generator().manual_seed(stride)
    z = torch.rand(3, 1, 9, 7, generator=generator)
    loss = ForwardLoss(losses.create("hd-papm", stride=stride), 1.7 * stride, kind)
    torch.testing.assert_close(loss.displaced(z).sum((1, 2, 3)), z.sum((1, 2, 3)))
    # Images that end inside a cell and begin inside one, in larger crops.
    sizes = torch.tensor([[5.3, 4.2], [7.0, 3.5], [4.0, 6.9]]) * stride
    offsets = -torch.tensor([[1.0, 2.0], [0.5, 1.25], [0.0, 3.0]]) * stride
    context = LossContext(offsets=offsets, sizes=sizes)
    for b in range(3):
        first = (-offsets[b] / stride).floor().long()
        last = ((sizes[b].flip(0) - offsets[b]) / stride).ceil().long()
        seen = z[b, 0, first[1] : last[1], first[0] : last[0]]
        moved = loss.displaced(z, context)[b, 0]
        torch.testing.assert_close(moved.sum(), seen.sum())
        assert not moved[last[1] :].any() and not moved[:, last[0] :].any() and not moved[: first[1]].any()


def test_mass_crosses_the_border_of_a_crop_and_not_that_of_an_image() -> None:
    z = torch.zeros(2, 1, 8, 8)
    z[:, 0, 4, 0] = 1.0  # the first column
    context = LossContext(offsets=torch.tensor([[0.0, 0], [400.0, 0]]), sizes=torch.full((2, 2), 1000.0))
    whole, part = corrected(distance=16.0).displaced(z, context).sum((1, 2, 3)).tolist()
    assert whole == pytest.approx(1, abs=1e-6)
    q = displacement_kernel(16.0, "ring", STRIDE)
    assert part == pytest.approx(float(q[:, len(q) // 2 :].sum()), abs=1e-6) and part < 0.65


def test_a_crop_of_an_image_is_displaced_as_the_image_is() -> None:
    """Crops, with a frame as wide as the displacement: inside it, the window of the displaced whole."""
    z = torch.rand(1, 1, 20, 24, dtype=torch.float64)
    loss = corrected(distance=16.0)
    whole = loss.displaced(z)
    m = 2
    for y, x in ((0, 0), (5, 7), (8, 12), (-2, 12), (10, -2)):
        crop = torch.zeros(1, 1, 12, 12, dtype=torch.float64)
        top, left = max(0, y), max(0, x)
        seen = z[..., top : y + 12, left : x + 12]
        crop[..., top - y : top - y + seen.shape[-2], left - x : left - x + seen.shape[-1]] = seen
        context = LossContext(offsets=torch.tensor([[8.0 * x, 8.0 * y]]), sizes=torch.tensor([[160.0, 192.0]]))
        found = loss.displaced(crop, context)[..., m : 12 - m, m : 12 - m]
        wanted = torch.zeros_like(found)
        window = whole[..., max(0, y + m) : y + 12 - m, max(0, x + m) : x + 12 - m]
        wanted[..., : window.shape[-2], : window.shape[-1]] = window
        torch.testing.assert_close(found, wanted)


def test_the_map_is_the_mean_of_displaced_dots() -> None:
    """Heads near the corner of an image, many draws with its rule at the border: the expected dots of every cell."""
    rng = np.random.default_rng(3)
    size, heads = (64, 80), torch.tensor([[4.0, 4.0], [20.0, 12.0], [76.0, 30.0], [41.0, 60.0]])
    n = 40_000
    for kind in KINDS:
        # Anywhere in their cells, as the kernel has them.
        places = (heads // 8 * 8).repeat(n, 1) + 8 * torch.from_numpy(rng.uniform(size=(4 * n, 2))).float()
        dots, kept = displace(places, size, 18.0, kind, rng)
        assert len(kept) == 4 * n
        mean = dot_maps(PointBatch.from_list([dots]), size, 8)[0] / n
        z = dot_maps(PointBatch.from_list([heads]), size, 8)[:, None]
        found = corrected(distance=18.0, kind=kind).displaced(z.double())[0, 0]
        # Q is that of a place anywhere in the cell, the rule is that of each place: they differ by a few per cent there.
        assert (found - mean).abs().max() < 0.012 and float((found - mean).abs().sum()) < 0.12


def test_what_can_land_nowhere_is_dropped() -> None:
    """An image smaller than the ring: `points.displace` gives such points up."""
    rng = np.random.default_rng(0)
    assert len(displace(torch.full((5, 2), 8.0), (16, 16), 40.0, "ring", rng)[1]) == 0
    context = LossContext(offsets=torch.zeros(1, 2), sizes=torch.full((1, 2), 16.0))
    moved = corrected(distance=40.0).displaced(torch.ones(1, 1, 4, 4, requires_grad=True), context)
    moved.sum().backward()
    assert not moved.any()


def test_linear_and_batched() -> None:
    a, b = torch.rand(2, 4, 1, 6, 5, dtype=torch.float64)
    context = LossContext(offsets=torch.randint(-8, 30, (4, 2)), sizes=torch.tensor([[40.0, 50.0]]).repeat(4, 1))
    loss = corrected(distance=9.0, kind="disc")

    def moved(z: Tensor) -> Tensor:
        return loss.displaced(z, context)

    torch.testing.assert_close(moved(2 * a - 3 * b), 2 * moved(a) - 3 * moved(b))
    assert context.offsets is not None and context.sizes is not None
    for k in range(4):
        alone = LossContext(offsets=context.offsets[k : k + 1], sizes=context.sizes[k : k + 1])
        torch.testing.assert_close(moved(a)[k : k + 1], loss.displaced(a[k : k + 1], alone))


def test_gradients() -> None:
    z = torch.rand(2, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    points = [torch.rand(4, 2) * 48, torch.zeros(0, 2)]
    context = LossContext(offsets=torch.tensor([[-5.0, 0], [60, 3]]), sizes=torch.tensor([[40.0, 44], [90, 110]]))
    loss = corrected("hd-papm", distance=13.0)
    assert torch.autograd.gradcheck(lambda d: loss(d, points, context=context).total, (z,))


def test_no_head_stands_where_nothing_counts_but_in_the_margin() -> None:
    """The mask ends heads and dots alike; of the margin it says nothing, since no loss looks there."""
    mask = torch.zeros(1, 96, 96, dtype=torch.bool)
    mask[:, 16:80, 16:80] = True  # a margin of 16 px
    mask[:, 40:48, 40:48] = False  # and a cell outside the region of interest
    context = LossContext(mask=mask, offsets=torch.full((1, 2), 200.0), sizes=torch.full((1, 2), 900.0))
    z = torch.zeros(1, 1, 12, 12)
    z[..., 5, 5] = 1.0
    assert not corrected(distance=16.0, margin=16).displaced(z, context).any()
    z[..., 5, 5], z[..., 1, 5] = 0.0, 1.0
    assert not corrected(distance=16.0).displaced(z, context).any()
    moved = corrected(distance=16.0, margin=16).displaced(z, context)
    assert float(moved[..., 2:10, 2:10].sum()) == pytest.approx(0.43, abs=0.03)
    # The loss sees none of what lands in the margin: its count is that of the part that counts.
    counted = float((moved * losses.base.cell_mask(context, z, STRIDE)).sum())  # type: ignore[operator]
    term = corrected("sc", distance=16.0, margin=16)(z, [torch.zeros(0, 2)], context=context).terms["count"]
    assert float(term) == pytest.approx(counted)


# -- around other losses ----------------------------------------------------------------------------------------------


class Sees(CountingLoss):
    """Keeps what it was given."""

    def __init__(self, maps: int = 1) -> None:
        super().__init__(STRIDE)
        self.maps, self.seen = maps, []  # type: ignore[var-annotated]

    def compute(self, density: Tensor, points: PointBatch, context: LossContext | None) -> LossOutput:
        self.seen.append((density, points, context))
        return LossOutput(density.sum(), {"sum": density.sum().detach()})


def test_the_loss_inside_gets_the_displaced_map_and_all_else_as_it_was() -> None:
    inner = Sees()
    loss, z = ForwardLoss(inner, 12.0), torch.rand(2, 1, 5, 5)
    points = PointBatch.from_list([torch.rand(3, 2) * 40, torch.zeros(0, 2)])
    context = LossContext(halo=points, images=torch.rand(2, 3, 40, 40))
    out = loss(z, points, context=context)
    density, given, around = inner.seen[0]
    assert torch.equal(density, loss.displaced(z, context)) and given is points and around is context
    assert torch.equal(out.total, density.sum()) and set(out.terms) == {"sum"}


def test_no_distance_is_the_loss_itself() -> None:
    z, points = torch.rand(2, 1, 8, 8), [torch.rand(5, 2) * 64, torch.rand(9, 2) * 64]
    for name in ("al-papm", "hd-papm", "bl"):
        wanted = losses.create(name, stride=STRIDE)(z, points).total
        torch.testing.assert_close(corrected(name, distance=0.0)(z, points).total, wanted)


def test_several_classes() -> None:
    """The map of every class is displaced by itself."""
    z = torch.rand(2, 2, 8, 8)
    points = PointBatch.from_list([torch.rand(6, 2) * 64] * 2, labels=[torch.tensor([0, 1, 0, 1, 1, 0])] * 2)
    inside = ClassLoss(losses.create("hd-papm", stride=STRIDE), 2)
    loss = ForwardLoss(inside, 12.0)
    assert loss.maps == 2 and loss.halo == inside.halo
    one = corrected("hd-papm", distance=12.0)
    moved = torch.cat([one.displaced(z[:, :1]), one.displaced(z[:, 1:])], 1)
    torch.testing.assert_close(loss.displaced(z), moved)
    torch.testing.assert_close(loss(z, points).total, inside(moved, points).total)
    # Classes around the correction are the same thing.
    other = ClassLoss(corrected("hd-papm", distance=12.0), 2)
    direct = ClassLoss(losses.create("hd-papm", stride=STRIDE), 2)
    torch.testing.assert_close(other(z, points).total, direct(moved, points).total)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ForwardLoss(losses.create("p2p-papm"), 8.0), "this one matches points"),
        (lambda: corrected(distance=-1.0), "finite number of pixels"),
        (lambda: corrected(distance=math.nan), "finite number of pixels"),
        (lambda: corrected(kind="rings"), "ring"),  # type: ignore[arg-type]
        (lambda: corrected(margin=12), "multiple of the map's stride 8"),
        (lambda: corrected(margin=-8), "not negative"),
    ],
)
def test_what_it_refuses(make: Callable[[], CountingLoss], message: str) -> None:
    with pytest.raises(PapmError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value) and isinstance(caught.value, ConfigError)


# -- what it is for ---------------------------------------------------------------------------------------------------


def crowd(draws: int, distance: float) -> tuple[dict[str, Tensor], list[Tensor]]:
    """A regular crowd of 10 × 10 people 14 px apart in an image of 256²: three maps for it, and dots displaced on a ring."""
    rng, size = np.random.default_rng(0), (256, 256)
    along = (np.arange(10) - 4.5) * 14 + 128
    heads = torch.tensor(np.stack(np.meshgrid(along, along), -1).reshape(-1, 2), dtype=torch.float32)
    dots = [displace(heads, size, distance, "ring", rng)[0] for _ in range(draws)]

    def maps(points: list[Tensor]) -> Tensor:
        return dot_maps(PointBatch.from_list(points), size, STRIDE)[:, None].float()

    truth = maps([heads] * draws)
    return {"memorised": maps(dots), "truth": truth, "blurred": corrected(distance=distance).displaced(truth)}, dots


def objective(name: str, z: Tensor, dots: list[Tensor]) -> float:
    """What the gradient of a transport loss descends, ⟨a, α⟩ + ⟨b, β⟩ and the other terms; its value is ⟨C, T⟩."""
    points, out = PointBatch.from_list(dots), losses.create(name, stride=STRIDE)(z, dots)
    alpha, beta = grid_sinkhorn(points, z[:, 0], STRIDE, {"dm-count": "l2", "al-papm": "ggd-l2"}[name]).potentials
    b = (z / z.sum((1, 2, 3), keepdim=True)).flatten(1)
    dual = torch.where(points.valid, alpha, 0).sum(1) / points.counts + (b * beta.flatten(1)).sum(1)
    return float(dual.mean() + out.terms["count"] + out.weights["tv"] * out.terms["tv"])


@pytest.mark.parametrize("name", ["al-papm", "dm-count"])
def test_the_truth_is_best_only_with_the_correction(name: str) -> None:
    """Without it both losses reward a map of the displaced dots; with it the true heads, in value and in what is descended."""
    maps, dots = crowd(8, 32.0)
    plain, loss = losses.create(name, stride=STRIDE), corrected(name, distance=32.0)
    without = {k: float(plain(z, dots).total) for k, z in maps.items()}
    with_it = {k: float(loss(z, dots).total) for k, z in maps.items()}
    assert min(without, key=without.__getitem__) == "memorised" and without["memorised"] < 0.2 * without["truth"]
    assert with_it["truth"] < 0.99 * min(with_it["memorised"], with_it["blurred"])
    without = {k: objective(name, z, dots) for k, z in maps.items()}
    with_it = {k: objective(name, loss.displaced(z), dots) for k, z in maps.items()}
    assert without["memorised"] < 0 < min(without["truth"], without["blurred"])
    assert with_it["truth"] < 0.9 * min(with_it["memorised"], with_it["blurred"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_squares_are_least_for_the_truth(kind: KnownKind) -> None:
    """Squares against many draws: descent from a flat map ends at the heads, without the correction at their blur."""
    rng, size = np.random.default_rng(1), (64, 64)
    heads = torch.tensor([[20.0, 20.0], [44.0, 44.0]])
    dots = [displace(heads, size, 8.0, kind, rng)[0] for _ in range(3000)]
    mean = dot_maps(PointBatch.from_list(dots), size, STRIDE)[:, None].float().mean(0, keepdim=True)
    loss = corrected(distance=8.0, kind=kind)
    z = torch.full((1, 1, 8, 8), 0.03, requires_grad=True)
    optimizer = torch.optim.Adam([z], lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        (loss.displaced(z) - mean).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            z.clamp_(min=0)
    at_heads = float((z[0, 0, 2, 2] + z[0, 0, 5, 5]).detach())
    assert at_heads > 1.5 and at_heads > 2.2 * float(mean[0, 0, 2, 2] + mean[0, 0, 5, 5])
