"""Other weights for the same function: trunks that are easier to train from the published files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn

from papm.errors import ConfigError
from papm.models.base import require
from papm.models.vgg import VGGTrunk

RMS = 0.02  # target of "rms": about √(2/4608), He's value for the 512-channel layers


def rebalance(trunk: nn.Module, target: str = "rms") -> None:
    """Rescale every convolution of a trunk to one weight size, without changing what the trunk computes.

    ReLU and max-pooling are homogeneous, so with W'ₖ = fₖ·Wₖ and b'ₖ = Fₖ·bₖ, Fₖ = f₁⋯fₖ, every activation is Fₖ times
    what it was, and `trunk.scales` = 1/Fₖ at each tap undoes it. fₖ brings the root mean square of the weights to 0.02
    ("rms") or to √(2/fan-in) ("he"). Adam moves all weights by about the learning rate: one rate then suits all layers.

    >>> from papm.models.vgg import vgg_trunk
    >>> trunk = vgg_trunk("vgg16", taps=("conv1_2",)).double()
    >>> images = torch.randn(1, 3, 8, 8).double()
    >>> before = trunk(images)[0]
    >>> rebalance(trunk, "rms")
    >>> bool(torch.allclose(trunk(images)[0], before)), round(trunk[0].weight.square().mean().sqrt().item(), 6)
    (True, 0.02)
    """
    require("rebalance", target, ("rms", "he"))
    if not isinstance(trunk, VGGTrunk) or any(isinstance(layer, nn.BatchNorm2d) for layer in trunk):
        raise ConfigError("rebalance works on VGG trunks without batch normalisation; leave it out for this network")
    product = 1.0
    scales: list[float] = []
    with torch.no_grad():
        for index, layer in enumerate(trunk):
            if isinstance(layer, nn.Conv2d):
                factor = _factor(layer, target)
                product *= factor
                layer.weight.mul_(factor)
                if layer.bias is not None:
                    layer.bias.mul_(product)
            if index in trunk.ends:
                scales.append(1.0 / product)
        undo = next(trunk.parameters()).new_tensor(scales)
        trunk.scales = undo if trunk.scales is None else trunk.scales * undo


def _factor(conv: nn.Conv2d, target: str) -> float:
    """What brings the weights of a convolution to their size."""
    rms = conv.weight.double().square().mean().sqrt().item()
    goal = RMS if target == "rms" else math.sqrt(2.0 / conv.weight[0].numel())
    return goal / rms if rms > 0 else 1.0


@torch.no_grad()
def settle(trunk: VGGTrunk, batches: Iterable[Tensor]) -> None:
    """Give the batch norms of a trunk that has none of its own the statistics of its activations on `batches`.

    Mean and variance of each channel become the running statistics, and scale and shift undo them: what the trunk computes
    stays as it is, and from there batch norm trains as it does in a trunk that was trained with it. Behind a norm the size of a
    convolution's weights means nothing but how far a step of Adam moves them: they get He's, √(2/fan-in).

    >>> from papm.models.vgg import vgg_trunk
    >>> trunk = vgg_trunk("vgg16-bn", taps=("conv2_2",)).double().eval()
    >>> images = torch.randn(2, 3, 16, 16).double()
    >>> before = trunk(images)[0]
    >>> settle(trunk, [images])
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
        factor = _factor(conv, "he")
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.copy_(factor * mean)
        norm.running_var.copy_(factor**2 * variance)
        norm.weight.copy_((variance + norm.eps / factor**2).sqrt())
        norm.bias.copy_(mean)
        conv.weight.mul_(factor)
        if conv.bias is not None:
            conv.bias.mul_(factor)
    trunk.unsettled = False
