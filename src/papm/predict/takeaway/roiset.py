"""RoiSet.zip of ImageJ and Fiji: the points of each image as a multi-point selection, a counter for each class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from papm.data.formats.roi import roi_set
from papm.data.formats.roifile import MOST_COUNTERS
from papm.data.upright import as_stored
from papm.errors import ConfigError
from papm.predict.results import file_names
from papm.predict.takeaway.base import ResultFormat, Taken, register

FOLDER, ENDING = "roisets", "_RoiSet.zip"


@register
class RoiSet(ResultFormat):
    """RoiSet.zip of ImageJ, one for each image: drop it on the ROI Manager"""

    name, suffix = "roiset", ".zip"

    def files(self, taken: Sequence[Taken], folder: Path) -> Iterator[tuple[Path, bytes]]:
        names = file_names([t.prediction.name for t in taken])
        yield from ((folder / FOLDER / f"{name}{ENDING}", self.content([t])) for t, name in zip(taken, names))

    def content(self, taken: Sequence[Taken]) -> bytes:
        if len(taken) != 1:
            raise ConfigError(f"a RoiSet.zip holds the points of one image, not of {len(taken)}")
        made, file = taken[0].prediction, taken[0].file
        if made.points is None:
            return roi_set([], None)
        points = made.points.detach().cpu().double()
        if file is not None:  # ImageJ passes over EXIF
            points = as_stored(points, file, made.size)
        kinds = None if made.kinds is None else made.kinds.tolist()
        if max(kinds or [0]) >= MOST_COUNTERS:
            raise ConfigError(f"{made.name}: has the class {max(kinds or [0])}; ImageJ counts classes from 0 to 99")
        return roi_set([(x, y) for x, y in points.tolist()], kinds)

    def there(self, folder: Path) -> list[str]:
        return [f"{FOLDER}/"] if any((folder / FOLDER).glob(f"*{ENDING}")) else []
