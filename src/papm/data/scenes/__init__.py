"""The looks of synthetic scenes, one file each."""

from papm.data.scenes import cells, crowd, vehicles
from papm.data.scenes.base import Key, Layout, Look, Style

LOOKS: dict[str, Look] = {look.name: look for look in (crowd.LOOK, vehicles.LOOK, cells.LOOK)}

__all__ = ["LOOKS", "Key", "Layout", "Look", "Style"]
