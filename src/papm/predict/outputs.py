"""What the output of a network counts by its contract, in the whole image or in a region."""

from __future__ import annotations

import torch
from torch import Tensor

from papm.errors import CheckpointError
from papm.inference import Inference
from papm.structures import DensityOutput, PointProposals
from papm.targets import touched_cells

COUNTS = {"points": "threshold", "expected": "expected"}  # how proposals may be decoded instead


def counts(output: DensityOutput | PointProposals, contract: Inference, roi: Tensor | None = None) -> Tensor:
    """Objects counted in each image, float [B]: the sum of a map, the number of proposals that score above ½, or the sum of
    their probabilities, as the contract says.

    Inside the region `roi` (bool [H, W]) where one is given: cells that touch it, as in training.
    """
    if isinstance(output, DensityOutput):
        return _inside(output, roi).sum((1, 2, 3))
    return tally(output, contract, roi).sum((1, 2))


def class_counts(output: DensityOutput | PointProposals, contract: Inference, roi: Tensor | None = None) -> Tensor:
    """`counts` of every class, float [B, C]: they sum to it."""
    if isinstance(output, DensityOutput):
        return _inside(output, roi).sum((2, 3))
    return tally(output, contract, roi).sum(1)


def require_finite(output: DensityOutput | PointProposals, contract: Inference, name: str = "") -> None:
    """Refuse what a broken model gives: a count that is not a finite number, or points whose scores are none.

    Scores that are not numbers exceed no threshold: they would count as nothing seen.
    """
    values = output.density if isinstance(output, DensityOutput) else torch.cat([output.points, output.logits], -1)
    if not bool(values.isfinite().all()) or not bool(counts(output, contract).isfinite().all()):
        raise CheckpointError(
            f"{name or 'the image'}: the model's count is not a number (NaN or infinity): its training failed or its weights"
            " are damaged; use another checkpoint, or train again"
        )


def within(output: DensityOutput | PointProposals, roi: Tensor) -> DensityOutput | PointProposals:
    """What one image's output has inside a region, bool [H, W]."""
    if isinstance(output, DensityOutput):
        return DensityOutput(_inside(output, roi), output.stride)
    kept = _in_region(output, roi)[0]
    return PointProposals(output.points[:, kept], output.logits[:, kept], output.reference[kept])


def _inside(output: DensityOutput, roi: Tensor | None) -> Tensor:
    """The map, zero in cells that do not touch the region."""
    density = output.density
    if roi is None:
        return density
    return density * touched_cells(roi.to(density.device)[None], output.stride)


def tally(output: PointProposals, contract: Inference, roi: Tensor | None = None) -> Tensor:
    """What each proposal adds to the count of each class, [B, M, classes], inside the region."""
    if contract.decode == "expected":
        found = output.probabilities(contract.background)
    else:
        best = output.logits[..., 1:].argmax(-1, keepdim=True)
        found = torch.zeros_like(output.logits[..., 1:], dtype=torch.float32)
        found = found.scatter(-1, best, objects(output)[..., None].float())
    return found if roi is None else found * _in_region(output, roi)[..., None]


def _in_region(output: PointProposals, roi: Tensor) -> Tensor:
    """bool [B, M]: proposals whose point lies in the region."""
    column, row = output.points.floor().long().unbind(-1)
    return roi.to(column.device)[row.clamp(0, roi.shape[0] - 1), column.clamp(0, roi.shape[1] - 1)].bool()


def objects(proposals: PointProposals) -> Tensor:
    """bool [B, M]: proposals whose best class scores above ½."""
    return proposals.logits.float().softmax(-1)[..., 1:].amax(-1) > 0.5
