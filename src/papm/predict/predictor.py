"""Counting in an image with a trained model: `papm.Counter.load("run/best.ckpt").predict("crowd.jpg").count`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor

from papm import chances, checkpoint, localize
from papm.data.resize import of_config, resized_region
from papm.errors import CheckpointError, ConfigError, DataError, unknown
from papm.images import max_pixels, resize_image
from papm.models import DensityNetwork, Network
from papm.predict.pixels import pixels
from papm.predict.prediction import Prediction
from papm.predict.restore import restore
from papm.predict.scale import advice, check_scale, factor, seen_size, shrunk_too_much
from papm.predict.tiling import OnTile, Tile, check, computed_pixels, infer
from papm.structures import DensityOutput, PointProposals
from papm.targets import touched_cells

log = logging.getLogger(__name__)
COUNTS = ("points", "expected")  # how proposals are counted: scores above ½, or the sum of their chances
PRECISIONS = ("32", "bf16")


def pick_device(name: str = "auto") -> torch.device:
    """`auto` is the GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("there is no CUDA device here; use --device cpu (for papm train and in Python device=cpu)")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            torch.zeros(1, device=device).tolist()
        missing = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    except Exception:  # a kind that this torch was not built for: RuntimeError, AssertionError, NotImplementedError, …
        missing = True
    if missing:
        raise ConfigError(f"'{name}' is no device of this machine; use auto, cpu or cuda")
    return device


def counts(output: DensityOutput | PointProposals, threshold: float = 0.5, roi: Tensor | None = None) -> Tensor:
    """Objects counted in each image, float [B]: the sum of a map, the number of proposals above the threshold, or the sum of
    their chances, as the proposals say.

    Inside the region `roi` (bool [H, W]) where one is given: cells that touch it, as in training.
    """
    if isinstance(output, DensityOutput):
        return _inside(output, roi).sum((1, 2, 3))
    return _tally(output, threshold, roi).sum((1, 2))


def class_counts(output: DensityOutput | PointProposals, threshold: float = 0.5, roi: Tensor | None = None) -> Tensor:
    """`counts` of every class, float [B, C]: they sum to it."""
    if isinstance(output, DensityOutput):
        return _inside(output, roi).sum((2, 3))
    return _tally(output, threshold, roi).sum(1)


def require_finite(output: DensityOutput | PointProposals, name: str = "") -> None:
    """Refuse what a broken model gives: a count that is not a finite number, or points whose scores are none.

    Scores that are not numbers exceed no threshold: they would count as nothing seen.
    """
    values = output.density if isinstance(output, DensityOutput) else torch.cat([output.points, output.logits], -1)
    if not bool(values.isfinite().all()) or not bool(counts(output).isfinite().all()):
        raise CheckpointError(
            f"{name or 'the image'}: the model's count is not a number (NaN or infinity): its training failed or its weights"
            " are damaged; use another checkpoint, or train again"
        )


def within(output: DensityOutput | PointProposals, roi: Tensor) -> DensityOutput | PointProposals:
    """What one image's output has inside a region, bool [H, W]."""
    if isinstance(output, DensityOutput):
        return DensityOutput(_inside(output, roi), output.stride)
    kept = _in_region(output, roi)[0]
    return dataclasses.replace(
        output, points=output.points[:, kept], logits=output.logits[:, kept], reference=output.reference[kept]
    )


def _inside(output: DensityOutput, roi: Tensor | None) -> Tensor:
    """The map, zero in cells that do not touch the region."""
    density = output.density
    if roi is None:
        return density
    return density * touched_cells(roi.to(density.device)[None], output.stride)


def _tally(output: PointProposals, threshold: float, roi: Tensor | None) -> Tensor:
    """What each proposal adds to the count of each class, [B, M, classes], inside the region."""
    if output.expected:
        found = output.chances
    else:
        best = output.logits[..., 1:].argmax(-1, keepdim=True)
        found = torch.zeros_like(output.logits[..., 1:], dtype=torch.float32)
        found = found.scatter(-1, best, objects(output, threshold)[..., None].float())
    return found if roi is None else found * _in_region(output, roi)[..., None]


def _mean(apart: Sequence[float], beside: Sequence[Prediction]) -> tuple[float, ...]:
    """Counts of the classes, the mean of one model's and others'."""
    return tuple(fmean(each) for each in zip(apart, *(p.class_counts for p in beside)))


def _scaled(density: Tensor, sums: Sequence[float]) -> Tensor:
    """A map [C, h, w] with these sums, class by class; nothing stays nothing."""
    before = density.double().sum((1, 2))
    factor = torch.tensor(sums, dtype=torch.float64) / before
    return (density.double() * torch.where(before > 0, factor, 1.0)[:, None, None]).to(density)


def _by_class(output: PointProposals) -> tuple[float, ...]:
    """Counts of several classes; nothing where there is one."""
    return tuple(class_counts(output)[0].tolist()) if output.logits.shape[-1] > 2 else ()


def _in_region(output: PointProposals, roi: Tensor) -> Tensor:
    """bool [B, M]: proposals whose point lies in the region."""
    column, row = output.points.floor().long().unbind(-1)
    return roi.to(column.device)[row.clamp(0, roi.shape[0] - 1), column.clamp(0, roi.shape[1] - 1)].bool()


def objects(proposals: PointProposals, threshold: float = 0.5) -> Tensor:
    """bool [B, M]: proposals whose best class scores above the threshold."""
    return proposals.logits.float().softmax(-1)[..., 1:].amax(-1) > threshold


class Source(Protocol):
    """What counts in an image: a model, several (`papm.predict.ensemble`), or nobody yet (`papm serve` without a model)."""

    def predict(
        self,
        image: Any,
        *,
        points: bool = True,
        name: str = "",
        roi: Tensor | None = None,
        on_tile: OnTile | None = None,
        limit: int | None = None,
    ) -> Prediction: ...


class Counter:
    """A trained model that counts."""

    def __init__(
        self,
        network: Network,
        spec: checkpoint.ModelSpec,
        device: str = "auto",
        tile: Tile = "auto",
        count: str | None = None,
        precision: str = "32",
        scale: float | None = None,
    ) -> None:
        self.tile, self.scale = check(tile), check_scale(scale)
        if precision not in PRECISIONS:
            raise unknown("precision", precision, PRECISIONS)
        self.precision = precision
        if count is not None:
            if count not in COUNTS:
                raise unknown("way to count points", count, COUNTS)
            if isinstance(network, DensityNetwork):
                log.warning("this model counts by the sum of its map; 'count' is for networks that give points")
            network.expected = count == "expected"
        self.device = pick_device(device)
        # Channels last: a tenth to a half faster on a CPU, for every network.
        self.network = network.to(self.device).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        self.spec = spec
        self.resize = of_config(spec.config)  # objects must have the size here that they had in training
        self._warned = False

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        tile: Tile = "auto",
        count: str | None = None,
        precision: str = "32",
        scale: float | None = None,
    ) -> Counter:
        """From a checkpoint file or a run folder.

        `count`: how a point network counts, "points" or "expected"; as it was trained where nothing is said.
        `tile`: large images are cut into overlapping tiles ("auto"), never ("none"), or those with a longer side than this
        many pixels (`papm.predict.tiling`).
        `precision`: "32", or "bf16", which is twice as fast on devices that have it and changes counts by about 0.1 %.
        `scale`: a factor for the sides of images, instead of the rule that the training images were resized by.
        """
        file = checkpoint.resolve(Path(path).expanduser())
        spec, state = checkpoint.load(file)
        return cls(checkpoint.build(spec, state, file), spec, device, tile, count, precision, scale)

    def warning(self, size: tuple[int, int]) -> str:
        """What makes the count of an image of (H, W) doubtful: that it is shrunk much more than any in the training."""
        return "" if self.scale is not None else shrunk_too_much(size, self.resize, self.spec.scales)

    def predict(
        self,
        image: Any,
        *,
        points: bool = True,
        name: str = "",
        roi: Tensor | None = None,
        on_tile: OnTile | None = None,
        limit: int | None = None,
        beside: Sequence[Prediction] = (),
    ) -> Prediction:
        """Count in a file, a Pillow image, an array [H, W, 3] or a tensor [3, H, W] (uint8, RGB).

        With `points`, the prediction also says where the model sees objects. An image is resized by the rule that the model was
        trained with, if any (`Prediction.scale`, and `warning` where that shrinks it much more than any training image); the
        prediction is in pixels of the image given. With `roi`, bool [H, W], only what lies in that region is counted, mapped
        and pointed at. `on_tile` hears (done, all) of a large image. An image that the network would see with more pixels than
        `limit` (`papm.images.max_pixels()` where None), resized and padded, is refused. `beside` is what other models counted
        in this image (`papm.Ensemble`): the count is then the mean, the map is scaled to it, and points are as many.
        """
        if isinstance(image, str | Path):
            name = name or Path(image).name
        image = pixels(image)
        size = (int(image.shape[1]), int(image.shape[2]))
        roi = None if roi is None else torch.as_tensor(roi)
        if roi is not None and tuple(roi.shape) != size:
            raise DataError(
                f"a region of interest is bool [{size[0]}, {size[1]}] for this image, not {list(roi.shape)}"
            )
        seen = seen_size(size, self.resize, self.scale, name or "image")
        self._refuse_larger(name, size, seen, max_pixels() if limit is None else limit)
        if seen == size:
            return self._predict(image, points, name, roi, on_tile, beside)
        if roi is not None:
            roi = resized_region(roi, seen)
        warning = self.warning(size)
        if warning and not self._warned:  # once: every prediction has its own
            self._warned = True
            log.warning("%s: %s (%s)", name or "the image", warning, advice(self.spec.scales))
        made = restore(self._predict(resize_image(image.cpu(), seen), points, name, roi, on_tile, beside), size)
        return dataclasses.replace(made, scale=factor(size, seen), warning=warning)

    def _refuse_larger(self, name: str, size: tuple[int, int], seen: tuple[int, int], limit: int) -> None:
        """Refuse an image that is cheap to hold and not to count: a strip a pixel high is padded, a small one enlarged."""
        pixels = computed_pixels(self.network, seen)
        if pixels > limit:
            raise DataError(
                f"{name or 'the image'}: {size[1]}×{size[0]}, resized and padded for this model, is {pixels / 1e6:.4g}"
                f" megapixels, more than the limit of {limit / 1e6:g}; cut it into shorter pieces"
            )

    def _predict(
        self,
        image: Tensor,
        points: bool,
        name: str,
        roi: Tensor | None,
        on_tile: OnTile | None,
        beside: Sequence[Prediction],
    ) -> Prediction:
        """Count in pixels, at the size they have."""
        size = (int(image.shape[1]), int(image.shape[2]))
        output = infer(self.network, image, self.tile, on_tile, self.precision)
        require_finite(output, name)
        if roi is not None:
            output = within(output, roi)
        own = float(counts(output))
        each = (own, *(p.count for p in beside))
        count = fmean(each)
        by_model = each if beside else ()
        if isinstance(output, PointProposals):
            apart = _mean(_by_class(output), beside)
            if not points:  # to look for them takes longer than to count, where chances count
                return Prediction(count, size, name=name, classes=self.spec.classes, by_class=apart, by_model=by_model)
            # All of them, so that the count is the number of points (rounded, where chances count): each began inside the
            # image, and one that was moved across the border belongs to an object at it.
            if output.expected:
                xy, scores, labels = chances.gather(output, 0, round(count), roi)
            elif beside:
                xy, scores, labels = (t[: round(count)] for t in localize.from_proposals(output, 0, threshold=-1.0))
            else:
                xy, scores, labels = localize.from_proposals(output, 0)
            limit = xy.new_tensor([size[1], size[0]])
            xy = xy.clamp(min=0).minimum(torch.nextafter(limit, torch.zeros_like(limit)))
            return Prediction(
                count,
                size,
                points=xy.cpu(),
                scores=scores.cpu(),
                labels=labels.cpu(),
                name=name,
                classes=self.spec.classes,
                by_class=apart if output.expected or beside else (),
                by_model=by_model,
            )
        density = output.density[0].float().cpu()
        several = _mean(density.double().sum((1, 2)).tolist(), beside) if beside and len(density) > 1 else ()
        if beside:
            density = _scaled(density, several or (count,))
        found: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
        if points and len(density) > 1:
            found = localize.peaks_by_class(density, output.stride, size=size)
        elif points:
            found = (*localize.peaks(density, output.stride, size=size), None)
        return Prediction(
            count,
            size,
            density,
            output.stride,
            *found,
            name=name,
            classes=self.spec.classes,
            by_class=several,  # of several models: a class that this one does not see is missing in its map
            by_model=by_model,
        )
