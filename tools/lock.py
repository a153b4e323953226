"""requirements.lock: every package that `make` installs, with its hashes; made from pyproject.toml and constraints.txt.

    python tools/lock.py            # resolve, ask PyPI for the hashes, write (needs the network)
    python tools/lock.py --check    # does it belong to the two files? (no network)

torch is apart: the CPU build comes from another place than PyPI's, and PyPI's brings gigabytes of CUDA packages. Hashes are
those of all files for Linux and macOS on the Pythons below; packages that only Windows needs are missing.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from project import ROOT, bounds, pins, requirements

LOCK = ROOT / "requirements.lock"
APART = re.compile(r"torch|triton|cuda-.*|nvidia-.*")
PYTHONS = ("cp311", "cp312", "cp313")
PLATFORMS = re.compile(r"any|manylinux.*_(x86_64|aarch64)|macosx_.*_(arm64|x86_64|universal2)")
INDEX = "https://pypi.org/simple"


def inputs(root: Path = ROOT) -> str:
    """A digest of what the lock is made from: bounds of all that `make` installs, and the pins; comments do not count."""
    said = {name: str(allowed) for name, allowed in sorted(bounds(["dev"], root).items())}
    text = json.dumps([said, sorted(pins(root / "constraints.txt").items())])
    return hashlib.sha256(text.encode()).hexdigest()


def resolved() -> dict[str, tuple[str, str]]:
    """Version and SHA-256 of the file that pip would install here, for each package."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        wanted = [str(r) for r in requirements(["dev"])]
        options = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        command = [sys.executable, "-m", "pip", "install", *options, "-c", str(ROOT / "constraints.txt"), *wanted]
        subprocess.run(command, check=True)
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
    found = {}
    for item in items:
        name = canonicalize_name(item["metadata"]["name"])
        if not APART.fullmatch(name):
            found[name] = (item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


def wanted(file: str, version: str) -> bool:
    """Whether a file of the index is this version for a machine the lock is for."""
    try:
        _, found, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return False
    fits = any(
        PLATFORMS.fullmatch(t.platform)
        and (t.interpreter in PYTHONS or t.interpreter.startswith("py") or t.abi == "abi3")
        and not t.abi.endswith("t")
        for t in tags
    )
    return found == Version(version) and fits


def source(file: str, version: str) -> bool:
    """Whether a file of the index is the source of this version."""
    try:
        return parse_sdist_filename(file)[1] == Version(version)
    except InvalidSdistFilename:
        return False


def hashes(name: str, version: str) -> list[str]:
    """The hashes that PyPI lists for this version: of its wheels, or of its source where it has none."""
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    links = re.findall(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"', html.unescape(page))
    return sorted({h for f, h in links if wanted(f, version)}) or sorted({h for f, h in links if source(f, version)})


def write() -> None:
    """Make the lock anew."""
    lines = [
        "# Made by tools/lock.py (`make lock`) from pyproject.toml and constraints.txt; not by hand.",
        f"# inputs: {inputs()}",
    ]
    for name, (version, here) in sorted(resolved().items()):
        known = hashes(name, version)
        if here not in known:
            raise SystemExit(f"{name} {version}: the file that pip takes here is none of PyPI's")
        lines.append(f"{name}=={version} \\\n" + " \\\n".join(f"    --hash=sha256:{h}" for h in known))
        print(f"{name} {version}: {len(known)} files", flush=True)
    LOCK.write_text("\n".join(lines) + "\n", encoding="utf-8")


def complaints(root: Path = ROOT) -> list[str]:
    """What is wrong with the lock of a project; nothing where it belongs to the two files."""
    path = root / "requirements.lock"
    if not path.exists():
        return ["requirements.lock: missing; make lock"]
    text, locked = path.read_text(encoding="utf-8"), pins(path)
    found = []
    if f"# inputs: {inputs(root)}\n" not in text:
        found.append("requirements.lock: pyproject.toml or constraints.txt has changed since it was made; make lock")
    for name, version in pins(root / "constraints.txt").items():
        if locked.get(name, version) != version:
            found.append(f"{name}: {locked[name]} is locked, {version} pinned in constraints.txt")
    for name, allowed in bounds(["dev"], root).items():
        if APART.fullmatch(name):
            continue
        if name not in locked:
            found.append(f"{name}: pyproject.toml asks for it, and it is not locked")
        elif not SpecifierSet(str(allowed)).contains(locked[name], prereleases=True):
            found.append(f"{name}: {locked[name]} is locked, pyproject.toml admits {allowed}")
    bare = [
        entry.split("==")[0] for entry in re.split(r"\n(?=\S)", text) if "==" in entry and "--hash=sha256:" not in entry
    ]
    return found + [f"{name}: is locked without a hash" for name in bare]


def main() -> None:
    """Write the lock, or check it."""
    parser = argparse.ArgumentParser(description="Write requirements.lock, or check it.")
    parser.add_argument("--check", action="store_true", help="only compare it with its sources, without the network")
    if not parser.parse_args().check:
        try:
            write()
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"requirements.lock is as it was; making it needs pip and PyPI: {error}") from None
    if found := complaints():
        raise SystemExit("\n".join(found))
    print(f"requirements.lock: {len(pins(LOCK))} packages")


if __name__ == "__main__":
    main()
