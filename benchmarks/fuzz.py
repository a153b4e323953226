"""Change valid inputs of papm at random and see what its commands make of them.

    python benchmarks/fuzz.py [--n 10000] [--seed 0] [--family format image/png …] [--json OUT.json] [--keep FOLDER]

Annotation files of every format, published layouts, images of sixteen encodings, checkpoints and settings are changed as disks,
editors, other programs and people with bad intentions change them. What is read must be refused in one sentence (papm's own
error), or read. Findings, and exit code 1:

    traceback   any other exception, a message that is no sentence, or a process that died
    hang        more than 10 s of processor time, or two minutes by the clock
    memory      more than 2 GB
    silent      a PNG (image, dot map, mask) that is cut short or fails its checksums, or a model whose count is no number,
                and all the same it is counted with success

"Read differently" is no finding: a table that was cut at the end of a line cannot be told from a correct one.
Mutation k of a family depends on the seed alone: `--only FAMILY NUMBER` shows one again, with its traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for those who run it from elsewhere

from fuzzing.inputs import FILES
from fuzzing.models import MODELS
from fuzzing.pool import FINDINGS, OUTCOMES, Job, Make, Tried, run
from papm.engine.run_folder import hardware, revision

FAMILIES: Mapping[str, Make] = {**FILES, **MODELS}
SHARES = {"format": 36, "published": 18, "image": 26, "model/checkpoint": 6, "model/values": 6, "model/resume": 1,
          "settings/command": 4, "settings/run": 2, "settings/config.yaml": 3}  # fmt: skip
WORDS = dict(
    zip(OUTCOMES, ("refused", "read equal", "read differently", "tracebacks", "hangs", "memory", "silently wrong"))
)


def chosen(words: Sequence[str]) -> list[str]:
    """Families by name or by the first part of it; all where nothing is said."""
    found = [f for f in FAMILIES if not words or any(f == w or f.startswith(f"{w}/") for w in words)]
    if not found:
        raise SystemExit(f"no such family; known: {', '.join(FAMILIES)}")
    return found


def jobs(families: Sequence[str], n: int, seed: int) -> list[Job]:
    """n mutations: each group has its share, each family of a group the same; in a random order, so that an end comes late."""
    groups = {f: f if f in SHARES else f.partition("/")[0] for f in families}
    members = Counter(groups.values())
    shares = {f: SHARES[g] / members[g] for f, g in groups.items()}
    each = {f: max(1, round(n * s / sum(shares.values()))) for f, s in shares.items()}
    made = [(f, k) for f, number in each.items() for k in range(number)]
    Random(seed).shuffle(made)
    return made


def table(results: Mapping[str, Sequence[Tried]]) -> str:
    """A row of each family, and the sum."""
    rows = [["family", "mutations", *WORDS.values(), "slowest, s", "peak, MB"]]
    for name, tried in {**results, "all": [t for r in results.values() for t in r]}.items():
        counted = Counter(t.outcome for t in tried)
        worst = [f"{max(t.seconds for t in tried):.1f}", f"{max(t.peak for t in tried) / 1e6:.0f}"]
        rows.append([name, str(len(tried)), *(str(counted[o]) for o in OUTCOMES), *worst])
    wide = [max(len(r[k]) for r in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join(c.rjust(w) if k else c.ljust(w) for k, (c, w) in enumerate(zip(r, wide))) for r in rows)


def grouped(findings: Sequence[Tried]) -> list[dict[str, Any]]:
    """Findings of one kind at one place, told once with the first of them."""
    found: dict[tuple[str, str, str], list[Tried]] = defaultdict(list)
    for t in sorted(findings, key=lambda t: t.number):
        found[t.family, t.outcome, t.detail].append(t)
    listed = [
        {"family": f, "kind": o, "detail": d, "times": len(ts), "first": ts[0].number, "what": ts[0].what}
        for (f, o, d), ts in found.items()
    ]
    return sorted(listed, key=lambda g: (g["kind"], g["family"], -g["times"]))


def again(family: str, number: int, seed: int, keep: Path | None) -> None:
    """One mutation in this process, with its traceback."""
    folder = keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    subject = FAMILIES[family](folder)
    subject.use()
    print(subject.apply(Random(f"{seed}/{family}/{number}")), f"in {folder}", flush=True)
    found = subject.use()
    print("silently wrong:" if subject.wrong(found) else "read:", str(found)[:2000])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10_000, help="mutations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--family", nargs="+", default=[], help="format, published, image, model, settings, or one of them"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--json", type=Path, help="write figures and findings to this file")
    parser.add_argument("--only", nargs=2, metavar=("FAMILY", "NUMBER"), help="show one mutation again")
    parser.add_argument("--keep", type=Path, help="with --only: the folder to leave the changed input in")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.only:
        again(asked.only[0], int(asked.only[1]), asked.seed, asked.keep)
        return 0
    todo = jobs(chosen(asked.family), asked.n, asked.seed)
    results: dict[str, list[Tried]] = defaultdict(list)
    began = shown = time.monotonic()
    for done, tried in enumerate(run(FAMILIES, todo, asked.seed, asked.jobs), 1):
        results[tried.family].append(tried)
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{done} of {len(todo)}, {done / (shown - began):.0f} a second", file=sys.stderr)
    seconds = time.monotonic() - began
    ordered = {f: results[f] for f in FAMILIES if results[f]}
    findings = grouped([t for r in ordered.values() for t in r if t.outcome in FINDINGS])
    print(table(ordered))
    for g in findings:
        print(f"\n{g['kind']}: {g['family']}, {g['times']}×, first {g['first']}: {g['detail']}\n    {g['what']}")
    print(f"\n{len(todo)} mutations in {seconds:.0f} s, seed {asked.seed}; kinds of findings: {len(findings)}")
    if asked.json:
        counted = {f: {"mutations": len(r), **Counter(t.outcome for t in r)} for f, r in ordered.items()}
        about = {
            "n": len(todo),
            "seed": asked.seed,
            "seconds": round(seconds, 1),
            "processes": asked.jobs,
            "hardware": hardware(),
            "revision": revision(),
        }
        asked.json.write_text(
            json.dumps({**about, "families": counted, "findings": findings}, indent=1), encoding="utf-8"
        )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
