"""Without the extra `papm[train]` there are no torchmetrics classes to test."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torchmetrics") else ["test_torch_*.py"]
