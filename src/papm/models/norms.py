"""Statistics for batch norms over trunk weights that were trained without any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn

from papm.models.vgg import VGGTrunk


@torch.no_grad()
def calibrate_norms(trunk: VGGTrunk, batches: Iterable[Tensor]) -> None:
    """Give the batch norms of a trunk that has none of its own the statistics of its activations on `batches`.

    Mean and variance of each channel become the running statistics, and scale and shift undo them: what the trunk computes
    stays as it is, and from there batch norm trains as it does in a trunk that was trained with it. Behind a norm the size of a
    convolution's weights means nothing but how far a step of Adam moves them: they get He's, √(2/fan-in).

    >>> trunk = VGGTrunk("vgg16-bn", (2,)).double().eval()
    >>> images = torch.randn(2, 3, 16, 16).double()
    >>> before = trunk(images)[0]
    >>> calibrate_norms(trunk, [images])
    >>> [bool(torch.allclose(t(images)[0], before, atol=1e-3)) for t in (trunk, trunk.train())]
    [True, True]
    """
    pairs = [(a, b) for a, b in pairwise(trunk) if isinstance(a, nn.Conv2d) and isinstance(b, nn.BatchNorm2d)]
    norms = [norm for _, norm in pairs]
    sums = [torch.zeros(3, norm.num_features, dtype=torch.float64) for norm in norms]

    def watch(number: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].double().transpose(0, 1).flatten(1)
            sums[number] += torch.stack([torch.full_like(x[:, 0], x.shape[1]), x.sum(1), x.square().sum(1)]).cpu()

        return see

    hooks = [norm.register_forward_pre_hook(watch(k)) for k, norm in enumerate(norms)]
    was_training = trunk.training
    trunk.eval()
    try:
        for images in batches:
            trunk(images)
    finally:
        trunk.train(was_training)
        for hook in hooks:
            hook.remove()
    for (conv, norm), (number, total, squares) in zip(pairs, sums):
        mean = total / number.clamp(min=1)
        variance = (squares / number.clamp(min=1) - mean.square()).clamp(min=0)
        rms = conv.weight.double().square().mean().sqrt().item()
        factor = math.sqrt(2.0 / conv.weight[0].numel()) / rms if rms > 0 else 1.0
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.copy_(factor * mean)
        norm.running_var.copy_(factor**2 * variance)
        norm.weight.copy_((variance + norm.eps / factor**2).sqrt())
        norm.bias.copy_(mean)
        conv.weight.mul_(factor)
        if conv.bias is not None:
            conv.bias.mul_(factor)
    trunk.uncalibrated = False
