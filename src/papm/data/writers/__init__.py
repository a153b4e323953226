"""Writing datasets."""

from papm.data.writers.folder import write_folder

__all__ = ["write_folder"]
