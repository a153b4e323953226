"""Building the wheel: with PAPM_BUILD_C=1 it carries the C loops, compiled, and is one for this kind of machine.

Without it the wheel is pure Python with the C sources inside, which are compiled at first use.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildC(BuildHookInterface[Any]):
    """Compiled loops beside the Python code."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say so in the name of the wheel. A compiler that is asked for and missing ends the build."""
        if self.target_name != "wheel" or version == "editable" or os.environ.get("PAPM_BUILD_C", "0") != "1":
            return
        package = Path(self.root) / "src" / "papm"
        spec = importlib.util.spec_from_file_location("papm_c_sources", package / "c_sources.py")
        assert spec is not None and spec.loader is not None
        sources = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sources)
        for made in sources.build_all(package, Path(self.root) / "build" / "native"):
            build_data["force_include"][str(made)] = f"papm/{sources.BUILT}/{made.name}"
        build_data["pure_python"] = False
        machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{machine}"  # no extension modules: any Python 3, any ABI
