"""Writing datasets."""

from papm.data.writers.folder import write_folder, write_splits

__all__ = ["write_folder", "write_splits"]
