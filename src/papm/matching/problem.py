"""What an assignment is, and the checks every path shares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from papm.errors import ConfigError
from papm.text import Brief

Pairs = tuple[Tensor, Tensor]  # rows and columns, int64 [k] each, sorted by row


@dataclass(frozen=True, eq=False, repr=False)
class Assignment(Brief):
    """Which column each row of a batch of problems has.

    columns  [B, N] int64, the column of each row; -1 for padding, and for the rows left over where a problem has more rows
             than columns
    counts   [B, 2] int32, the real rows and columns of each problem
    """

    columns: Tensor
    counts: Tensor

    @property
    def matched(self) -> Tensor:
        """[B, N] bool: the rows that have a column."""
        return self.columns >= 0

    @property
    def surplus(self) -> Tensor:
        """[B] int32: how many rows of each problem could have none, since it has fewer columns than rows."""
        return (self.counts[:, 0] - self.counts[:, 1]).clamp(min=0)

    def pairs(self) -> list[Pairs]:
        """The (rows, columns) of each problem; waits for the device."""
        found = []
        for row in self.columns:
            rows = (row >= 0).nonzero().flatten()
            found.append((rows, row[rows]))
        return found


def refuse(problem: int) -> ConfigError:
    """The error for a cost that cannot be compared."""
    return ConfigError(f"the cost of problem {problem} has values that are not finite; clamp costs before assigning")


def prepare(cost: Tensor, name: str = "cost") -> Tensor:
    """A cost matrix (or batch) without its gradient, in float32 or float64."""
    if cost.is_complex() or cost.dtype == torch.bool:
        raise ConfigError(f"{name} must be numbers that can be ordered, not {cost.dtype}")
    cost = cost.detach()
    if cost.dtype in (torch.float32, torch.float64):
        return cost
    return cost.float() if cost.is_floating_point() else cost.double()
