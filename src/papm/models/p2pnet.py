"""`p2pnet`: proposes points instead of a map (Song et al., P2PNet, ICCV 2021).

Every stride-8 cell holds a few reference points. One head says how far each of them is from an object (in hundreds of
pixels), the other what is there: background or a class. Left out are the parts of the published network that nothing
reads: the pyramid's other levels, and two convolutions in each head.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from papm.inference import Inference
from papm.models import trunks
from papm.models.base import Network, _full, _is_exporting, crop_to_image, drop_frame
from papm.models.layers import he_init
from papm.models.pyramid import Pyramid
from papm.models.registry import Classes, register
from papm.models.trunks import Trunk, outside
from papm.registry import Range
from papm.structures import PointProposals

STRIDE = 8
OFFSET_SCALE = 100.0  # P2PNet's: an offset of 0.01, the size of fresh weights' outputs, is one pixel
# Rows × columns of reference points in a cell: P2PNet's, and what its paper uses for UCF-QNRF.
REFERENCES = {"2x2": (2, 2), "4x2": (4, 2)}


class PointHead(nn.Module):
    """Two 3×3 convolutions with ReLU and a third to `values` numbers for each of the `references` of a cell."""

    def __init__(self, width: int, references: int, values: int) -> None:
        super().__init__()
        self.values = values
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.output = nn.Conv2d(width, references * values, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, h, w] → [B, references·values, h, w], the values of one reference side by side."""
        out: Tensor = self.output(self.layers(x))
        return out


def reference_points(
    rows: int, columns: int, grid: tuple[int, int], device: torch.device | str | None = None
) -> Tensor:
    """Reference points [rows·columns·grid rows·grid columns, 2] in pixels: cells row by row, `grid` in each row by row.

    >>> reference_points(1, 1, (2, 2)).tolist()
    [[2.0, 2.0], [6.0, 2.0], [2.0, 6.0], [6.0, 6.0]]
    """
    y = (torch.arange(rows * grid[0], device=device) + 0.5) * (STRIDE / grid[0])
    x = (torch.arange(columns * grid[1], device=device) + 0.5) * (STRIDE / grid[1])
    shape = (rows, grid[0], columns, grid[1])
    y = y.view(rows, grid[0], 1, 1).expand(shape)
    x = x.view(1, 1, columns, grid[1]).expand(shape)
    return torch.stack([x, y], -1).permute(0, 2, 1, 3, 4).reshape(-1, 2)


def _inside(reference: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Indices of the reference points inside an image of (H, W), in their order; no row or column of cells lies beyond it.

    How many there are follows from the sizes, so that the host does not wait for the device to say it.
    """
    outside = (reference[:, 0] >= size[1]) | (reference[:, 1] >= size[0])
    if _is_exporting():  # there sizes are symbols, and so is the number
        return (~outside).nonzero()[:, 0]
    down, along = (math.ceil(length * n / STRIDE - 0.5) for length, n in zip(size, grid))
    return outside.byte().argsort(stable=True)[: down * along]


class P2PNet(Network):
    """Trunk, pyramid level, two heads; any image size, and no proposal that starts beyond the image."""

    inference = Inference(decode="threshold")

    def __init__(
        self,
        features: Trunk,
        width: int,
        grid: tuple[int, int],
        num_classes: int,
        moves: bool = True,
    ) -> None:
        super().__init__()
        self.features = features
        self.stride, self.num_classes, self.grid = STRIDE, num_classes, grid
        self.multiple = features.strides[-1]
        # A stride-16 cell lies up to 8 px beyond the stride-8 cell that reads it; then four 3×3 convolutions at stride 8.
        self.receptive_field = outside(features.receptive_field, 8 + 4 * 8)
        self.pyramid = Pyramid(features.channels, width)
        self.offsets = PointHead(width, grid[0] * grid[1], 2) if moves else None
        self.classes = PointHead(width, grid[0] * grid[1], num_classes + 1)

    def forward(self, images: Tensor) -> PointProposals:
        """Images [B, 3, H, W] → proposals whose references lie inside the image, M = ⌈H/8⌉·⌈W/8⌉·4 when all do.

        Half precision ends here: pixels of a large image and differences of scores need float32.
        """
        x = self.pyramid(self.features(self.framed(images, self.frame_now)))
        height, width = images.shape[-2:]
        logits = self._proposed(self.classes, x, (height, width))
        # not -(-height // STRIDE): in an exported network division goes towards zero
        rows, columns = ((side + STRIDE - 1) // STRIDE for side in (height, width))
        reference = reference_points(rows, columns, self.grid, images.device).to(logits.dtype)
        offsets = None if self.offsets is None else OFFSET_SCALE * self._proposed(self.offsets, x, (height, width))
        # Training crops are multiples of the stride: nothing to drop, and nothing to wait for.
        if _is_exporting() or height % STRIDE or width % STRIDE:
            kept = _inside(reference, self.grid, (height, width))
            reference, logits = reference.index_select(0, kept), logits.index_select(1, kept)
            offsets = None if offsets is None else offsets.index_select(1, kept)
        place = reference.repeat(images.shape[0], 1, 1) if offsets is None else reference + offsets
        return PointProposals(place, logits, reference)

    def _proposed(self, head: PointHead, x: Tensor, size: tuple[int, int]) -> Tensor:
        """What a head says of every reference of the image's cells, [B, M, values], in float32 or better."""
        maps = crop_to_image(drop_frame(head(x), self.frame_now, STRIDE), *size, STRIDE)
        maps = _full(maps)
        # not -1, which a batch of none leaves open
        found = maps.shape[1] // head.values * maps.shape[2] * maps.shape[3]
        return maps.permute(0, 2, 3, 1).reshape(maps.shape[0], found, head.values)


@register(
    "p2pnet",
    kind="points",
    stride=STRIDE,
    trunk="vgg16",
    summary="a point detector: VGG, one pyramid level, offsets and classes of reference points (P2PNet)",
)
def p2pnet(
    *,
    trunk: str = "vgg16",
    num_classes: Classes = 1,
    references: Literal["2x2", "4x2"] = "2x2",
    width: Annotated[int, Range("must be a whole number from 0 to 2000", 0, 2000)] = 0,
    offsets: bool = True,
) -> Network:
    """`trunk` = vgg16, vgg16-bn (the published one), vgg19, vgg19-bn, lite, or tiny: a small one from nothing, for tests.

    `references` = 2x2 or 4x2 points per cell (rows × columns); `width` = channels of pyramid and heads, 0: half those of the
    trunk's last map, 32 to 256; `offsets` = whether proposals move from their references; if not, only scores are learned.
    """
    features = trunks.trunk(trunk, (8, 16))
    width = width or min(256, max(32, features.channels[-1] // 2))
    network = P2PNet(features, width, REFERENCES[references], num_classes, offsets)
    if getattr(features, "arch", None) is None:
        he_init(network.pyramid)
        for head in filter(None, (network.offsets, network.classes)):
            he_init(head.layers)
            nn.init.normal_(head.output.weight, std=1e-3)  # proposals start some 4 px from their references
    return network
