"""What every network shares: any input size, a stride, classes, parameter groups.

A network takes RGB images [B, 3, H, W], normalised with its own mean and std (`Inference`), of any size from 1×1, and returns
a map of ceil(H/stride) × ceil(W/stride) cells. Where the layers need a multiple of some size, the image is padded inside the
network, on the right and at the bottom, with its own mirror image, and the cells beyond the image are cut off again: padding
is never counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm.errors import DataError
from papm.inference import Inference
from papm.structures import DensityOutput, PointBatch

Kind = Literal["density", "points"]
Progress = Callable[[int, int | None], None]  # (bytes done, bytes in all when known)


def _is_exporting() -> bool:
    """Whether torch.export looks on. Not `torch.compiler.is_exporting()`: up to torch 2.11 it is true for torch.compile too."""
    flag = getattr(torch.compiler, "_is_exporting_flag", None)  # new in 2.7
    return torch.compiler.is_compiling() if flag is None else bool(flag)


class Network(nn.Module):
    """A network with a stride, a number of classes and parameters in two groups.

    `multiple` is what the layers need both sides to be a multiple of; away from borders, shifting the image by
    `multiple` pixels shifts the output by multiple/stride cells. `receptive_field` is a radius: how many pixels beyond its
    own cell an output sees. Tiles that overlap by that much (and start at multiples) give the cells of the whole image;
    None means that every output sees the whole image. A pretrained trunk, where there is one, is `features`.
    """

    stride: int
    num_classes: int
    multiple: int
    receptive_field: int | None = None
    weights_sha256: str | None = None  # of the file the trunk started from
    inference: Inference = Inference()  # how it counts; set when it is built
    fixed: tuple[int, int] | None = None  # the only (H, W) that it takes, where it was exported so
    # Whether `forward` takes `mask`, bool [B, H, W]: which pixels are of an image, where crops are padded.
    takes_mask: bool = False

    @property
    def frame(self) -> int:
        """Pixels of mean colour around an image that is counted: the contract's, rounded up to a multiple of `multiple`.

        A network that was trained with a margin has seen what lies beyond a border, and never had to answer for cells at the
        end of its input.
        """
        return (self.inference.frame + self.multiple - 1) // self.multiple * self.multiple

    @property
    def frame_now(self) -> int:
        """The frame to add: training brings its own."""
        return 0 if self.training else self.frame

    def framed(self, images: Tensor, frame: int) -> Tensor:
        """Checked images with `frame` px of the mean colour around them, and padded to what the layers need."""
        check_images(images)
        narrowest = 2 * self.multiple if in_half_on_cpu(images) else 0
        return pad_to_multiple(add_frame(images, frame), self.multiple, frame > 0, narrowest)

    @property
    def trunk(self) -> nn.Module | None:
        """The part that starts from published weights (`arch` names them), or None."""
        features = self._modules.get("features")
        return features if getattr(features, "arch", None) is not None else None

    @property
    def described(self) -> nn.Module | None:
        """The part whose output, or the last map of it, tells what is in an image: the trunk; None where there is none."""
        return self._modules.get("features")

    def auxiliary_losses(self, output: Any, points: PointBatch, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Losses that belong to the network rather than to the method, weighted, by name; none by default.

        They may read `output.aux`, e.g. an attention map, and are added to whatever loss the method has. `mask`, bool
        [B, H, W], is True where a pixel is real and counts: padding, margins and what lies outside a region of interest
        teach nothing.
        """
        return {}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter once, as "trunk" (starts from published weights; may be empty) and "head" (all the rest)."""
        trunk = [] if self.trunk is None else list(self.trunk.parameters())
        seen = {id(p) for p in trunk}
        return {"trunk": trunk, "head": [p for p in self.parameters() if id(p) not in seen]}


class DensityNetwork(Network):
    """A network whose output is a density map: subclasses write `density`, this class makes any image size fit."""

    def density(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W], sides multiples of `multiple` → non-negative map [B, C, H/stride, W/stride]."""
        raise NotImplementedError

    def density_and_aux(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The map of `density`, and by name whatever else training needs (`DensityOutput.aux`).

        A network with more to say than a density writes this instead. Maps [B, ·, H/stride, W/stride] are cut to the
        image like the density; tensors of other shapes are left as they are.
        """
        return self.density(images), {}

    def forward(self, images: Tensor) -> DensityOutput:
        """Images [B, 3, H, W] → density [B, C, ceil(H/stride), ceil(W/stride)], float32 or better.

        Half precision (autocast or half weights) ends here: sums of cells, i.e. counts, need float32.
        """
        frame = self.frame_now
        density, aux = self.density_and_aux(self.framed(images, frame))
        return self.output_of(density, aux, images.shape[-2], images.shape[-1], frame)

    def output_of(
        self, density: Tensor, aux: dict[str, Tensor], height: int, width: int, frame: int = 0
    ) -> DensityOutput:
        """What the framed and padded image gave, cut to its height × width pixels and in full precision."""

        def cut(maps: Tensor) -> Tensor:
            return crop_to_image(drop_frame(maps, frame, self.stride), height, width, self.stride)

        kept = {k: cut(v) if v.ndim == 4 else v for k, v in aux.items()}
        return DensityOutput(_full(cut(density)), self.stride, {k: _full(v) for k, v in kept.items()})


def _full(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_images(images: Tensor) -> None:
    """Refuse what is not a float batch of RGB images."""
    if images.ndim != 4 or images.shape[1] != 3:
        raise DataError(f"a network takes images of shape [B, 3, H, W], not {list(images.shape)}")
    if not images.is_floating_point():
        raise DataError(f"a network takes normalised floating-point images, not {images.dtype}; divide by 255 first")


def in_half_on_cpu(images: Tensor) -> bool:
    """Whether a CPU computes in half precision, where oneDNN 3.12 with AMX gets maps one cell wide wrong.

    Any strided convolution with such an output gives other numbers than it should, and not a number at times.
    """
    half = images.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled("cpu")
    return images.device.type == "cpu" and half


def pad_to_multiple(images: Tensor, multiple: int, framed: bool = False, narrowest: int = 0) -> Tensor:
    """The image mirrored at its last row and column until both sides are multiples of `multiple`, and it is not too narrow.

    A strip of one colour would be an edge that no training crop has, where networks see objects or miss them
    (docs/notebook/image-borders.md). Around images that are `framed` in the mean colour, as in training, the frame goes on:
    zeros.

    >>> pad_to_multiple(torch.arange(5.0).view(1, 1, 1, 5), 8).flatten().tolist()[:8]
    [0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]
    """
    height, width = images.shape[-2:]
    bottom = (height + multiple - 1) // multiple * multiple - height
    right = (width + multiple - 1) // multiple * multiple - width
    if narrowest:
        right = max(right, narrowest - width)
    # An exported program must hold the padding even if the example image needs none; elsewhere a copy is saved.
    if not (_is_exporting() or bottom or right):
        return images
    if framed:
        return F.pad(images, (0, right, 0, bottom))
    rows, columns = (_mirrored(n, more, images.device) for n, more in ((height, bottom), (width, right)))
    return images.index_select(-2, rows).index_select(-1, columns)


def _mirrored(length: int, more: int, device: torch.device) -> Tensor:
    """0 … length − 1 and `more` indices back from there; 0 again where there are no others."""
    return (length - 1 - (torch.arange(length + more, device=device) - (length - 1)).abs()).clamp(min=0)


def add_frame(images: Tensor, frame: int) -> Tensor:
    """Zeros (the mean colour) on all four sides."""
    return F.pad(images, (frame, frame, frame, frame)) if frame else images


def drop_frame(maps: Tensor, frame: int, stride: int) -> Tensor:
    """The cells from the image's first pixel on; `crop_to_image` takes those beyond its last."""
    return maps[..., frame // stride :, frame // stride :] if frame else maps


def crop_to_image(maps: Tensor, height: int, width: int, stride: int) -> Tensor:
    """The first ceil(height/stride) × ceil(width/stride) cells: those that see at least one real pixel."""
    rows, columns = (height + stride - 1) // stride, (width + stride - 1) // stride
    if _is_exporting():
        # torch.export cannot prove that a slice rows ≤ maps.shape[-2] fits for every size, and refuses; a gather needs
        # no such proof.
        down = torch.arange(rows, device=maps.device)
        across = torch.arange(columns, device=maps.device)
        return maps.index_select(-2, down).index_select(-1, across)
    return maps[..., :rows, :columns]
