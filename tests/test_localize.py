from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage
from torch import Tensor

from papm.errors import ConfigError, DataError
from papm.localize import from_proposals, peaks, peaks_by_class
from papm.predict.outputs import objects
from papm.structures import PointProposals


def blobs(points: list[tuple[float, float]], size: tuple[int, int], sigma: float, stride: int) -> Tensor:
    """Exact masses of Gaussians over cells, border included, by the error function."""
    h, w = -(-size[0] // stride), -(-size[1] // stride)

    def cdf(edges: Tensor, centre: float) -> Tensor:
        return torch.special.ndtr((edges * stride - centre) / sigma)

    total = torch.zeros(h, w, dtype=torch.float64)
    for x, y in points:
        along_x = cdf(torch.arange(w + 1.0, dtype=torch.float64), x).diff()
        along_y = cdf(torch.arange(h + 1.0, dtype=torch.float64), y).diff()
        total += torch.outer(along_y, along_x)
    return total


def nearest(found: Tensor, truth: list[tuple[float, float]]) -> Tensor:
    return torch.cdist(torch.tensor(truth, dtype=found.dtype), found).amin(1)


# ---- peaks -----------------------------------------------------------------------------------------------------------


def test_separate_objects_are_found_within_a_fraction_of_a_cell() -> None:
    truth = [(50.3, 41.9), (120.7, 44.0), (83.1, 99.6), (12.2, 110.5)]
    density = blobs(truth, (128, 160), 5.0, 8)
    refined, scores = peaks(density, 8, size=(128, 160))
    assert len(refined) == 4
    assert nearest(refined, truth).max() < 1.0
    assert (scores.diff() <= 0).all()


def test_a_lone_cell_has_its_point_in_the_middle() -> None:
    density = torch.zeros(4, 6)
    density[2, 3] = 1.0
    assert peaks(density, 8)[0].tolist() == [[28.0, 20.0]]


def test_peaks_two_cells_apart_are_two() -> None:
    density = torch.zeros(9, 9)
    density[4, 3], density[4, 5] = 1.0, 0.9
    assert len(peaks(density, 1, threshold=0.1)[0]) == 2


def test_criteria() -> None:
    density = torch.zeros(1, 9)
    density[0, ::2] = torch.tensor([0.1, 0.2, 0.4, 0.8, 0.3])
    assert len(peaks(density, 1, threshold=0.0)[0]) == 5
    assert peaks(density, 1, threshold=0.3)[1].tolist() == pytest.approx([0.8, 0.4, 0.3])
    assert peaks(density, 1)[1].tolist() == pytest.approx([0.8, 0.4])  # sum 1.8, rounded


def one_plateau(cells: list[tuple[int, int]], shape: tuple[int, int] = (9, 9)) -> Tensor:
    density = torch.zeros(shape)
    for i, j in cells:
        density[i, j] = 0.4
    return density


U_SHAPE = [(2, 2), (3, 2), (4, 2), (4, 3), (4, 4), (4, 5), (4, 6), (3, 6), (2, 6)]


@pytest.mark.parametrize("cells", [[(3, 3), (3, 4)], [(3, 3), (4, 4)], [(3, 4), (4, 3)], U_SHAPE])
def test_a_plateau_is_one_peak_in_its_middle(cells: list[tuple[int, int]]) -> None:
    points, _ = peaks(one_plateau(cells), 2, threshold=0.1)
    assert len(points) == 1
    # The mean of the centroids of its cells' neighbourhoods, all of one height.
    means = [np.mean([c for c in cells if max(abs(c[0] - i), abs(c[1] - j)) <= 1], 0) for i, j in cells]
    middle = torch.tensor(np.mean(means, 0), dtype=torch.float32).flip(0) * 2 + 1
    assert torch.allclose(points[0], middle)


def test_a_constant_map_is_one_plateau() -> None:
    points, _ = peaks(torch.full((20, 30), 0.01), 8, threshold=0.005)
    assert torch.allclose(points, torch.tensor([[120.0, 80.0]]))


def test_a_shoulder_is_no_peak() -> None:
    _, scores = peaks(torch.tensor([[5.0, 5.0, 5.0, 9.0, 0.0]]), 1, threshold=0.1)
    assert scores.tolist() == [9.0]


def regional_maxima(field: np.ndarray) -> int:
    """Slow reference: connected sets of equal cells that no neighbour exceeds (8-neighbourhood)."""
    number = 0
    for value in np.unique(field[field > 0]):
        labels, n = ndimage.label(field == value, np.ones((3, 3)))
        for k in range(1, n + 1):
            number += field[ndimage.binary_dilation(labels == k, np.ones((3, 3)))].max() == value
    return number


@settings(max_examples=40, deadline=None)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 8)), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
)
def test_number_of_peaks_equals_regional_maxima(field: np.ndarray) -> None:
    assert len(peaks(torch.from_numpy(field), 4, threshold=0.0)[0]) == regional_maxima(field)


def test_an_empty_or_broken_map_has_no_points() -> None:
    for density in (torch.zeros(5, 5), torch.full((5, 5), torch.nan), torch.full((5, 5), -1.0), torch.zeros(0, 4)):
        points, scores = peaks(density, 8)
        assert points.shape == (0, 2) and scores.shape == (0,)


def test_cells_cut_by_the_border_keep_their_points_inside() -> None:
    density = torch.zeros(2, 3)
    density[1, 2] = 1.0  # visible: 2 × 1 pixels at (16, 8)
    points, _ = peaks(density, 8, size=(9, 18))
    assert points.tolist() == [[17.0, 8.5]]


def test_a_peak_in_a_corner_is_the_centroid_of_the_cells_that_exist() -> None:
    density = torch.zeros(3, 4)
    density[0, 0], density[0, 1], density[1, 0] = 0.6, 0.2, 0.2
    assert torch.allclose(peaks(density, 8)[0], torch.tensor([[5.6, 5.6]]))
    assert torch.allclose(peaks(density.flip(0, 1), 8)[0], torch.tensor([[26.4, 18.4]]))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 16), st.floats(0.01, 4), st.integers(0, 10**6))
def test_as_many_points_as_the_map_sums_to_all_inside(h: int, w: int, stride: int, level: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    density = torch.rand(-(-h // stride), -(-w // stride), generator=generator) ** 3 * level
    points, scores = peaks(density, stride, size=(h, w))
    maxima = len(peaks(density, stride, size=(h, w), threshold=0.0)[0])
    wanted = round(float(density.sum()))
    assert len(points) == wanted or (maxima > wanted and len(points) == wanted)
    assert len(scores) == len(points)
    assert torch.isfinite(points).all()
    assert (points >= 0).all() and (points[:, 0] < w).all() and (points[:, 1] < h).all()


def test_a_cell_of_several_objects_gives_several_points_inside_it() -> None:
    density = torch.zeros(5, 5)
    density[2, 2] = 4.1
    points, _ = peaks(density, 8)
    assert len(points) == 4
    assert ((points >= 16) & (points < 24)).all()
    assert torch.pdist(points).min() > 2
    assert len(peaks(density, 8, threshold=0.0)[0]) == 1


def test_melted_neighbours_are_parted_and_lone_ones_left_alone() -> None:
    row = [(100.0 + 9 * k, 60.0) for k in range(6)]  # 9 px apart, blurred by 5: one ridge
    lone = [(30.0, 30.0), (220.0, 110.0)]
    density = blobs(row + lone, (160, 256), 5.0, 8)
    assert len(peaks(density, 8, threshold=0.0)[0]) < 8
    points, _ = peaks(density, 8)
    assert len(points) == 8
    assert nearest(points, row).max() < 4.5  # nearer to its own than to the next
    for x, y in lone:
        assert (torch.cdist(torch.tensor([[x, y]], dtype=points.dtype), points) < 24).sum() == 1


def test_basins_share_the_objects_by_what_is_left_of_their_mass() -> None:
    density = torch.zeros(5, 10)
    density[2, 2], density[2, 7] = 3.4, 2.6  # 2.4, 1.4, 0.4 and 1.6, 0.6 more than the first of each
    points, _ = peaks(density, 8)
    assert len(points) == 6
    assert int((points[:, 0] < 40).sum()) == 3


def test_a_ridge_is_cut_at_half_its_mass_and_its_parts_lie_where_the_map_is_high() -> None:
    """No cell holds more than a quarter of an object, so none is cut: the middle one goes where its own middle lies."""
    ridge = [0.10, 0.16, 0.22, 0.25, 0.24, 0.23, 0.21, 0.19, 0.15, 0.10]  # sum 1.85: half of it in the fifth cell's end
    points, scores = peaks(torch.tensor([ridge], dtype=torch.float64), 8)
    cubes = np.array(ridge) ** 3  # mass times the value squared
    centres = 8 * np.arange(10) + 4
    near, far = (float((cubes * centres)[part].sum() / cubes[part].sum()) for part in (slice(5), slice(5, 10)))
    assert points.tolist() == [pytest.approx([near, 4.0]), pytest.approx([far, 4.0])]
    assert scores.tolist() == pytest.approx([0.25, 0.23])


def test_all_objects_in_one_cell() -> None:
    points, _ = peaks(torch.tensor([[5000.0]]), 512)
    assert len(points) == 5000
    assert torch.allclose(points.mean(0), torch.tensor([256.0, 256.0]), atol=1.0)


def test_mirrored_map_gives_mirrored_points() -> None:
    density = blobs([(20.3, 30.2), (70.9, 18.0), (66.0, 66.6)], (88, 96), 6.0, 8)
    straight, _ = peaks(density, 8)
    mirrored, _ = peaks(density.flip(1), 8)
    assert torch.allclose(straight, torch.stack([96 - mirrored[:, 0], mirrored[:, 1]], -1), atol=1e-6)


def test_fractional_stride_of_a_resized_image() -> None:
    density = torch.zeros(4, 4)
    density[1, 2] = 1.0
    points, _ = peaks(density, 12.8, size=(51, 51))
    assert torch.allclose(points, torch.tensor([[32.0, 19.2]]))


def test_classes_summed_or_apart() -> None:
    density = torch.zeros(2, 5, 5)
    density[0, 1, 1], density[1, 3, 3] = 1.0, 2.0
    assert len(peaks(density, 8)[0]) == 3
    points, scores, labels = peaks_by_class(density, 8, threshold=0.5)
    assert points.tolist() == [[28.0, 28.0], [12.0, 12.0]]
    assert scores.tolist() == [2.0, 1.0]
    assert labels.tolist() == [1, 0]


def test_faults_are_named() -> None:
    with pytest.raises(ConfigError, match="stride must be positive"):
        peaks(torch.ones(3, 3), 0)
    with pytest.raises(DataError, match=r"3×3 cells of stride 8 .* 24×40"):
        peaks(torch.ones(3, 3), 8, size=(24, 40))
    for size in ((24, 25), (16, 24)):  # a pixel more than the cells cover, a row of cells beyond the image
        with pytest.raises(DataError, match="does not cover"):
            peaks(torch.ones(3, 3), 8, size=size)
    with pytest.raises(DataError, match="density map"):
        peaks(torch.ones(3), 8)
    with pytest.raises(DataError, match=r"is a tensor or array .* got list"):
        peaks(np.ones((3, 3)).tolist(), 8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_peaks_on_the_gpu_equal_those_on_the_cpu() -> None:
    density = torch.rand(60, 80, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for options in ({}, {"threshold": 0.5}):
        host, device = peaks(density, 8, **options), peaks(density.cuda(), 8, **options)  # type: ignore[arg-type]
        assert device[0].is_cuda
        assert torch.allclose(host[0], device[0].cpu(), atol=1e-3)


# ---- proposals -------------------------------------------------------------------------------------------------------


def proposals(xy: list[list[float]], scores: list[float]) -> PointProposals:
    p = torch.tensor(scores)
    logits = torch.stack([torch.zeros_like(p), torch.log(p / (1 - p))], -1)
    return PointProposals(torch.tensor([xy]), logits[None], torch.zeros(len(xy), 2))


def test_proposals_above_the_threshold_best_first() -> None:
    points, scores, labels = from_proposals(proposals([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], [0.6, 0.4, 0.9]), 0)
    assert points.tolist() == [[3.0, 3.0], [1.0, 1.0]]
    assert scores.tolist() == pytest.approx([0.9, 0.6])
    assert labels.tolist() == [0, 0]


def test_a_score_at_the_threshold_is_not_above_it() -> None:
    batch = proposals([[1.0, 1.0], [2.0, 2.0]], [0.5, 0.75])
    assert from_proposals(batch, 0)[0].tolist() == [[2.0, 2.0]]
    assert objects(batch).tolist() == [[False, True]]  # or the points would not be as many as are counted


def test_labels_are_the_best_class_from_zero() -> None:
    logits = torch.tensor([[[0.0, 1.0, 5.0], [0.0, 4.0, 1.0], [9.0, 0.0, 0.0]]])
    batch = PointProposals(torch.arange(6.0).reshape(1, 3, 2), logits, torch.zeros(3, 2))
    _, _, labels = from_proposals(batch, 0)
    assert labels.tolist() == [1, 0]


@pytest.mark.parametrize("mass", [1e6, 1e19, 3e38])
def test_there_are_no_more_points_than_pixels(mass: float) -> None:
    """A broken model may claim any number of objects; memory must not follow."""
    field = torch.zeros(12, 12)
    field[3, 4] = field[8, 8] = mass
    points, scores = peaks(field, 8, size=(96, 96))
    assert 0 < len(points) == len(scores) <= 96 * 96
