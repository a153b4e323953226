"""Models that are ready to count, by name: those that come with papm, and those of installed packages.

`papm.Counter.load("cells")`. A model is one file NAME.safetensors whose header holds its card (`papm.ready.card`). A package
brings its own with `[project.entry-points."papm.models"]` and a line `NAME = "PACKAGE"`, or `NAME = "PACKAGE:FILE"`, for a file
in the folder of that package; nothing of the package is run.
"""

from papm.ready.card import Card, Figure
from papm.ready.places import Ready, find, known, missing, shipped

__all__ = ["Card", "Figure", "Ready", "find", "known", "missing", "shipped"]
