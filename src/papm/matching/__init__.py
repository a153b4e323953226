"""One-to-one assignment between points and proposals: exact, for batches of rectangular problems, on CPU and GPU."""

from papm.matching.problem import Assignment
from papm.matching.solve import assign, assign_batch

__all__ = ["Assignment", "assign", "assign_batch"]
