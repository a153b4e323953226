"""Counting in an image with a trained model: `papm.Counter.load("run/best.ckpt").predict("crowd.jpg").count`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from papm import checkpoint, exported
from papm.data.resize import resized_region
from papm.errors import ConfigError, DataError, unknown
from papm.exported import kind_of
from papm.images import max_pixels, resize_image
from papm.likeness import Vector
from papm.models import Network
from papm.models.lite import fold
from papm.predict.assemble import Seen, View, calibrated, predicted
from papm.predict.columns import Columns, class_names
from papm.predict.outputs import COUNTS as COUNTS
from papm.predict.outputs import class_counts as class_counts
from papm.predict.outputs import counts as counts
from papm.predict.outputs import require_finite as require_finite
from papm.predict.outputs import within as within
from papm.predict.prediction import Prediction
from papm.predict.scale import check_scale, factor, seen_size, shrunk_too_much
from papm.predict.source import Asked, Predictor
from papm.predict.source import Source as Source
from papm.predict.tiling import LIMITS, Tile, check, computed_pixels, infer, infer_together, side_of
from papm.predict.unlike import Pooled, listening, say, steadiness, unlike
from papm.structures import DensityOutput, PointProposals
from papm.text import megapixels

log = logging.getLogger(__name__)
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


class Counter(Predictor):
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
        self.inference = spec.inference or network.inference
        self.spec = dataclasses.replace(spec, inference=self.inference)
        if count is not None and count not in COUNTS:
            raise unknown("way to count points", count, COUNTS)
        if count is not None and kind_of(network) == "density":
            log.warning("this model counts by the sum of its map; 'count' is for networks that give points")
        elif count is not None and COUNTS[count] != self.inference.decode:
            if self.inference.calibration is not None:
                log.warning("this model was calibrated for another way to count: its counts as '%s' are raw", count)
            self.inference = dataclasses.replace(self.inference, decode=COUNTS[count], calibration=None, interval=None)
        network.inference = self.inference
        self.device = pick_device(device)
        # Channels last: a tenth to a half faster on a CPU, for every network.
        self.network = network.to(self.device).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        fold(self.network)
        self.resize = self.inference.resize  # objects must have the size here that they had in training
        self.name, self._warned = "", False

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
        """From a checkpoint file, a run folder, or a file of `papm export` (.onnx, or OpenVINO's .xml), which counts on a CPU.

        `count`: how a point network counts, "points" or "expected"; as it was trained where nothing is said.
        `tile`: large images are cut into overlapping tiles ("auto"), never ("none"), or those with a longer side than this
        many pixels (`papm.predict.tiling`).
        `precision`: "32", or "bf16", which is twice as fast on devices that have it and changes counts by about 0.1 %.
        `scale`: a factor for the sides of images, instead of the rule that the training images were resized by.
        """
        file = checkpoint.resolve(path)
        if exported.is_exported(file):
            if device not in ("auto", "cpu") or precision != "32":
                raise ConfigError(
                    f"{file}: an exported model counts on the CPU, in float32; leave device and precision out"
                )
            made = cls(*exported.load(file), "cpu", tile, count, precision, scale)
        else:
            spec, state = checkpoint.load(file)
            made = cls(checkpoint.build(spec, state, file), spec, device, tile, count, precision, scale)
        made.name = file.resolve().parent.name if file.name == "best.ckpt" else file.stem
        return made

    def change(self, **contract: Any) -> None:
        """Count by another contract from now on: `calibration`, `interval`."""
        self.inference = self.network.inference = dataclasses.replace(self.inference, **contract)

    @property
    def columns(self) -> Columns:
        """What tables say of images: of every image the same, also where some have no interval."""
        contract, number = self.inference, self.network.num_classes
        classes = class_names(number, contract.classes or None) if number > 1 else ()
        return Columns(contract.calibration is not None, contract.interval is not None and self.scale is None, classes)

    def seen_size(self, size: tuple[int, int], name: str = "image") -> tuple[int, int]:
        """(H, W) at which an image of `size` is counted."""
        return seen_size(size, self.resize, self.scale, name, self.inference.scales)

    def warning(self, size: tuple[int, int]) -> str:
        """What makes the count of an image of (H, W) doubtful: that it would be shrunk much more than any in the training."""
        return "" if self.scale is not None else shrunk_too_much(size, self.resize, self.inference.scales)

    def _predict(self, image: Tensor, asked: Asked) -> Prediction:
        return self.calibrated(predicted(self.see(image, asked), asked.points))

    def _predict_several(self, images: Sequence[tuple[Tensor, Asked]]) -> list[Prediction]:
        """Images that the network sees at one size, and whole, go through it together."""
        views = [self._view(image, asked) for image, asked in images]
        size, asked = views[0].size, images[0][1]
        most = self._together(size) if len(views) > 1 and all(v.size == size for v in views) else 1
        if most == 1:
            each = [self._through(v, asked) for v in views]
        else:
            each = [seen for k in range(0, len(views), most) for seen in self._at_once(views[k : k + most])]
        return [self.calibrated(predicted(seen, asked.points)) for seen in each]

    def _together(self, size: tuple[int, int]) -> int:
        """How many images of (H, W) go through the network at once: no more pixels than of one that it takes whole."""
        if side_of(self.network, size, self.tile) is not None:
            return 1
        return max(1, LIMITS.get(self.device.type, LIMITS["cuda"]).pixels // computed_pixels(self.network, size))

    def _at_once(self, views: Sequence[View]) -> list[Seen]:
        with self._listening() as heard:
            outputs = infer_together(self.network, torch.stack([v.image for v in views]), self.precision)
        return [self._seen(v, out, heard.mean(k)) for k, (v, out) in enumerate(zip(views, outputs))]

    def calibrated(self, made: Prediction) -> Prediction:
        """A prediction with the calibration and the interval of the model, where it has them.

        An image that is unlike those of the training, or is resized by another rule, has no interval.
        """
        if self.inference.calibration is not None:
            made = calibrated(made, (self.inference.factor,))
        if self.inference.interval is None or made.warning or self.scale is not None:
            return made
        return dataclasses.replace(made, interval=self.inference.interval.around(made.count))

    def see(self, image: Tensor, asked: Asked) -> Seen:
        """What the network makes of pixels, uint8 [3, H, W], at the size it was trained at, inside the region asked about."""
        return self._through(self._view(image, asked), asked)

    def _through(self, view: View, asked: Asked) -> Seen:
        with self._listening() as heard:
            output = infer(self.network, view.image, self.tile, asked.on_tile, self.precision)
        return self._seen(view, output, heard.mean())

    def _listening(self) -> AbstractContextManager[Pooled]:
        profile = self.inference.profile
        # Small tiles have more border than the images that the features of the training were averaged over.
        wanted = profile is not None and profile.features is not None and not isinstance(self.tile, int)
        return listening(self.network, wanted)

    def _seen(self, view: View, output: DensityOutput | PointProposals, pooled: Vector | None) -> Seen:
        require_finite(output, self.inference, view.name)
        reasons: dict[str, str] = {}
        if (profile := self.inference.profile) is not None:
            steady = None if profile.steady is None else steadiness(self.network, view.image, output)
            reasons = unlike(profile, view.image, pooled, output, factor(view.original, view.size), steady)
        seen = Seen(view, output if view.roi is None else within(output, view.roi), self.inference, reasons)
        if seen.warning and not self._warned:  # once: every prediction has its own
            self._warned = True
            say(f"{view.name or 'the image'}: {seen.warning}", self.name)
        return seen

    def _view(self, image: Tensor, asked: Asked) -> View:
        """The image and its region at the size that the network sees them."""
        size, name = (int(image.shape[1]), int(image.shape[2])), asked.name
        roi = None if asked.roi is None else torch.as_tensor(asked.roi)
        if roi is not None and tuple(roi.shape) != size:
            raise DataError(f"a region of interest is bool {list(size)} for this image, not {list(roi.shape)}")
        seen, warning = self.seen_size(size, name or "image"), self.warning(size)
        self._refuse_larger(name, size, seen, max_pixels() if asked.limit is None else asked.limit)
        if seen == size:
            return View(image, name, roi, size, size, warning)
        if roi is not None:
            roi = resized_region(roi, seen)
        return View(resize_image(image.cpu(), seen), name, roi, seen, size, warning)

    def _refuse_larger(self, name: str, size: tuple[int, int], seen: tuple[int, int], limit: int) -> None:
        """Refuse an image that is cheap to hold and not to count: a strip a pixel high is padded, a small one enlarged."""
        pixels = computed_pixels(self.network, seen)
        if pixels > limit:
            raise DataError(
                f"{name or 'the image'}: {size[1]}×{size[0]}, resized and padded for this model, is {megapixels(pixels)}"
                f" megapixels, more than the limit of {limit / 1e6:g}; cut it into shorter pieces"
            )
