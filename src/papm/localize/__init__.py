"""Where the objects are: points from a density map, or from the proposals of a point network.

Points are (x, y) in pixels of the original image, inside it, best first.
"""

from papm.localize._peaks import peaks, peaks_by_class
from papm.localize._proposals import expected_points, from_proposals

__all__ = ["expected_points", "from_proposals", "peaks", "peaks_by_class"]
