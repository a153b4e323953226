"""The checklist of a release, walked through: what is checked is checked, and what a person must do is said at the end.

    python tools/release.py             # everything: an hour
    python tools/release.py --dry-run   # what takes seconds; the rest is listed

Nothing is tagged, pushed or uploaded by this program.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import audit
import lock
from environments import wheel
from project import ROOT

LARGEST_WHEEL = 20e6  # bytes: a model that slipped in would pass it


def git(*words: str) -> str:
    """What git answers in the repository."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def version(root: Path = ROOT) -> str:
    """The version of papm, as the package says it."""
    [found] = re.findall(r'^__version__ = "([^"]+)"', (root / "src/papm/version.py").read_text(encoding="utf-8"), re.M)
    return found


def check_version(root: Path = ROOT) -> list[str]:
    """One version, of three numbers, in the package and in CITATION.cff."""
    own, cited = version(root), (root / "CITATION.cff").read_text(encoding="utf-8")
    found = [] if re.fullmatch(r"\d+\.\d+\.\d+", own) else [f"version.py: {own} is not MAJOR.MINOR.PATCH"]
    if not re.search(rf"^version: \"?{re.escape(own)}\"?$", cited, re.M):
        found.append(f"CITATION.cff: its version is not {own}")
    return found


def check_changelog(root: Path = ROOT, today: str | None = None) -> list[str]:
    """The newest section is of this version and of today."""
    today = today or datetime.now(UTC).date().isoformat()
    sections = re.findall(r"^## \[([^\]]+)\](?: - (\S+))?", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    sections = [s for s in sections if s[0].lower() != "unreleased"]
    if not sections or sections[0][0] != version(root):
        return [f"CHANGELOG.md: its first section is not [{version(root)}]"]
    return (
        [] if sections[0][1] == today else [f"CHANGELOG.md: [{version(root)}] is dated {sections[0][1]}, not {today}"]
    )


def check_tree() -> list[str]:
    """Everything is committed, on main, and the tag is free."""
    found = [f"not committed: {line}" for line in git("status", "--porcelain").splitlines()]
    if (branch := git("rev-parse", "--abbrev-ref", "HEAD")) != "main":
        found.append(f"the branch is {branch}, not main")
    if git("tag", "--list", f"v{version()}"):
        found.append(f"the tag v{version()} is taken: raise the version")
    return found


def check_packages() -> list[str]:
    """The lock is of today's bounds, and nothing bad is admitted."""
    return lock.complaints() + audit.complaints(here=True)


def check_wheel() -> list[str]:
    """The wheel has every file of the package, none of the tests, and is not too large; the sdist can build it."""
    with tempfile.TemporaryDirectory() as place:
        made = wheel(Path(place))
        inside = set(zipfile.ZipFile(made).namelist())
        command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", place, str(ROOT)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        [source] = Path(place).glob("*.tar.gz")
        with tarfile.open(source) as archive:
            packed = {name.partition("/")[2] for name in archive.getnames()}
        return complaints_about_wheel(inside, made.stat().st_size, tracked(), packed)


def tracked() -> set[str]:
    """Files of the package that git knows, as they are named in a wheel."""
    return {name.removeprefix("src/") for name in git("ls-files", "src/papm").splitlines()}


def complaints_about_wheel(inside: set[str], size: float, wanted: set[str], packed: set[str]) -> list[str]:
    """What is wrong with the names in a wheel and in an sdist."""
    found = [f"the wheel lacks {name}" for name in sorted(wanted - inside)]
    more = {n for n in inside - wanted if not re.match(r"papm-[^/]+\.dist-info/", n)}
    found += [f"the wheel holds {name}, which is not the package's" for name in sorted(more)]
    if size > LARGEST_WHEEL:
        found.append(f"the wheel has {size / 1e6:.0f} MB")
    needed = {"pyproject.toml", "hatch_build.py", "requirements.lock", "constraints.txt", "LICENSE", "README.md"}
    return found + [f"the sdist lacks {name}" for name in sorted(needed - packed)]


def make(target: str) -> Callable[[], list[str]]:
    """`make TARGET`, where there is one."""

    def run() -> list[str]:
        if not re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M):
            return [f"the Makefile has no {target}"]
        return (
            [] if subprocess.run(["make", target], cwd=ROOT, check=False).returncode == 0 else [f"make {target} failed"]
        )

    return run


QUICK: dict[str, Callable[[], list[str]]] = {
    "the version": check_version,
    "the changelog": check_changelog,
    "the tree": check_tree,
    "lock and audit": check_packages,
    "wheel and sdist": check_wheel,
}
LONG: dict[str, Callable[[], list[str]]] = {
    "all tests": make("full"),
    "the documentation": make("docs"),
    "the core in a fresh environment": make("core"),
    "lowest and newest versions": make("bounds"),
}
BY_HAND = """By hand, when all of the above is in order:
  git tag -s v{version} -m "papm {version}" && git push origin v{version}
  python -m build && python -m twine upload dist/*      the pure wheel and the sdist
  docker build -f docker/Dockerfile.cpu -t papm:{version} . && docker run --rm papm:{version} doctor
  the release notes: the section of CHANGELOG.md
  raise src/papm/version.py, and begin the next section"""


def main() -> None:
    """Walk through the list; exit code 1 where something is not in order."""
    parser = argparse.ArgumentParser(description="Walk through the checklist of a release.")
    parser.add_argument("--dry-run", action="store_true", help="only what takes seconds; list the rest")
    dry, wrong = parser.parse_args().dry_run, 0
    for name, check in {**QUICK, **LONG}.items():
        if dry and name in LONG:
            print(f"later {name}")
            continue
        found = check()
        wrong += bool(found)
        print(f"{'WRONG' if found else 'ok   '} {name}", *(f"\n      {line}" for line in found), flush=True)
    print(f"\n{BY_HAND.format(version=version())}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
