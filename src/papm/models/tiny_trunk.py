"""`tiny`: a trunk of about 70 thousand parameters, for scenes that a CPU learns in minutes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from papm.models.layers import he_init
from papm.models.trunks import TRUNKS


class TinyTrunk(nn.Module):
    """Four strided convolutions and a residual one at stride 8 and at 16; only its last map can be asked for alone."""

    receptive_field = 1 + 2 + 4 + 8 + 8 + 16  # one pixel of its input's stride for each conv3×3

    def __init__(self, strides: tuple[int, ...] = (8, 16)) -> None:
        super().__init__()
        maps = ((48, 8), (64, 16))[-len(strides) :]
        self.channels, self.strides = (tuple(values) for values in zip(*maps))
        self.down = nn.ModuleList(
            nn.Conv2d(c, d, 3, stride=2, padding=1) for c, d in ((3, 16), (16, 32), (32, 48), (48, 64))
        )
        self.fine = nn.Conv2d(48, 48, 3, padding=1)
        self.coarse = nn.Conv2d(64, 64, 3, padding=1)
        he_init(self)
        with torch.no_grad():
            self.fine.weight.mul_(0.5)  # residual branches start small
            self.coarse.weight.mul_(0.5)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images [B, 3, H, W] → [B, 48, H/8, W/8] and [B, 64, H/16, W/16], or the second alone."""
        x = images
        for conv in self.down[:3]:
            x = F.relu(conv(x), inplace=True)
        fine = x + F.relu(self.fine(x))
        x = F.relu(self.down[3](fine), inplace=True)
        return [fine, x + F.relu(self.coarse(x))][-len(self.strides) :]


TRUNKS.register("tiny", TinyTrunk)
