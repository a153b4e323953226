"""A convolution of each channel followed by ReLU6, for training on a CPU: a C loop where there is a compiler.

In torch, the gradients of such convolutions, their ReLU6 and conversions to and from bf16 take most of a step of `lite`
(docs/speed.md). Here a row is read once, converted, clipped, convolved, clipped and written; sums are in float32.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from papm.c_sources import LOOPS
from papm.compiled import c_library, on_threads

SOURCE = Path(__file__).with_name("depthwise.c")
KERNELS = (3, 5)
KINDS = (torch.float32, torch.bfloat16)
THREAD_WORK = 100_000  # numbers of a map below which starting threads costs more than it saves


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    functions = {"papm_depthwise": 5, "papm_depthwise_back": 8}
    library = c_library(SOURCE, *LOOPS["models/depthwise.c"], functions=tuple(functions))
    if library is not None:
        for name, pointers in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = ctypes.c_int, [ctypes.c_void_p] * pointers
    return library


def available() -> bool:
    """Whether the loop can be had here."""
    return _library() is not None


def usable(x: Tensor, kernel: int) -> bool:
    """Whether the loop is to do it: a map on a CPU whose gradients are asked for, in memory and not traced.

    What traces a network sees torch's operations alone, and fake tensors have no memory.
    """
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return False
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    fits = type(x) is Tensor and x.device.type == "cpu" and x.dtype in KINDS and x.numel() > 0 and kernel in KERNELS
    return fits and torch.is_grad_enabled() and available()


def same_padding(length: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after a side of so many pixels as TensorFlow's SAME adds them, for a stride of 1 or 2.

    They are as many as ⌈length/stride⌉ outputs need, and one more after than before where their number is odd: at stride 2 a
    kernel of 3 starts on the first pixel of an even side, where the usual padding of 1 would start one before.

    >>> same_padding(8, 3, 2), same_padding(7, 3, 2), same_padding(8, 5, 2), same_padding(8, 5, 1)
    ((0, 1), (1, 1), (1, 2), (2, 2))
    """
    total = kernel - stride + length % stride
    return total // 2, total - total // 2


def reference(x: Tensor, weight: Tensor, bias: Tensor, stride: int, clip: bool) -> Tensor:
    """What `relu6_depthwise` computes, in torch: ReLU6 of the convolution with SAME padding, of ReLU6(x) if `clip`."""
    kernel = weight.shape[-1]
    rows, columns = (same_padding(n, kernel, stride) for n in x.shape[-2:])
    x = F.pad(F.relu6(x) if clip else x, (*columns, *rows))
    return F.relu6(F.conv2d(x, weight, bias, stride, groups=len(weight)))


def relu6_depthwise(x: Tensor, weight: Tensor, bias: Tensor, stride: int, clip: bool) -> Tensor:
    """ReLU6 of the convolution of each channel of x [B, C, H, W] with weight [C, 1, k, k]; of ReLU6(x) if `clip`.

    >>> x, weight, bias = torch.randn(2, 4, 7, 8, requires_grad=True), torch.randn(4, 1, 3, 3), torch.randn(4)
    >>> if available():
    ...     torch.testing.assert_close(relu6_depthwise(x, weight, bias, 2, True), reference(x, weight, bias, 2, True))
    """
    out: Tensor = _Depthwise.apply(x, weight, bias, stride, clip)  # type: ignore[no-untyped-call]
    return out


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: int, clip: bool) -> Tensor:
        batch, channels, height, width = x.shape
        kernel = weight.shape[-1]
        x = x.contiguous(memory_format=torch.channels_last)
        flat = weight.float().reshape(channels, -1).t().contiguous()  # [k², C]
        bias = bias.float().contiguous()
        (top, _), (left, _) = (same_padding(n, kernel, stride) for n in (height, width))
        rows, columns = (-(-n // stride) for n in (height, width))
        half = int(x.dtype == torch.bfloat16)
        shape = (height, width, channels, rows, columns, kernel, stride, top, left, half, int(clip))
        out = x.new_empty(batch, rows, columns, channels).permute(0, 3, 1, 2)
        numbers = _numbers(shape)
        _each("papm_depthwise", lambda k: (x[k], flat, bias, out[k]), numbers, batch, x.numel())
        ctx.save_for_backward(x, flat, out)
        ctx.numbers, ctx.weight = numbers, (weight.shape, weight.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, flat, out = ctx.saved_tensors
        gradient = gradient.to(out.dtype).contiguous(memory_format=torch.channels_last)
        to_x = torch.empty_like(x)
        to_weight = flat.new_empty(len(x), *flat.shape)
        to_bias = flat.new_empty(len(x), flat.shape[1])
        _each(
            "papm_depthwise_back",
            lambda k: (x[k], flat, out[k], gradient[k], to_x[k], to_weight[k], to_bias[k]),
            ctx.numbers,
            len(x),
            x.numel(),
        )
        shape, kind = ctx.weight
        return to_x, to_weight.sum(0).t().reshape(shape).to(kind), to_bias.sum(0), None, None


def _numbers(values: tuple[int, ...]) -> Any:
    return (ctypes.c_int * len(values))(*values)


def _each(name: str, tensors: Any, numbers: Any, batch: int, size: int) -> None:
    """Call a function for every image, on several threads where that pays."""
    function = getattr(_library(), name)

    def image(k: int) -> None:
        if function(*(t.data_ptr() for t in tensors(k)), numbers):
            raise MemoryError("no memory for a convolution")

    on_threads(image, batch, pays=size > THREAD_WORK)
