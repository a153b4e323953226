"""The results as documents: a page that says what is reached, and one page per table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from papm.errors import DataError
from papm.files import write_text
from papm.methods import RECIPE
from papm.report.load import number
from papm.study import claims, recipe_table, show, tables, training
from papm.study.cells import AUTO, NAMED, Cell, Study
from papm.study.claims import Judged
from papm.study.results import Group, Result
from papm.study.show import DASH, View, markdown_table, text_of
from papm.text import n_of

WRITTEN = "<!-- Written by `papm study results`. Do not edit: change results/ or a study, and write it again. -->"


@dataclass(frozen=True)
class Reached:
    """What one network reaches with one method on one dataset, by one recipe."""

    study: Study
    cell: Cell
    group: Group

    @property
    def who(self) -> list[str]:
        """Dataset, method and network, as they are called on the command line."""
        return [f"`{self.cell.settings[k]}`" for k in NAMED]

    @property
    def steps(self) -> int:
        """How long it was trained."""
        return int(self.group.results[0].values["steps"])

    @property
    def full(self) -> int | None:
        """How long the recipe trains; None where the data choose, and chose no length of these."""
        steps = training.asked(self.cell.parts[0])["steps"]
        chosen = None if "steps" in self.group.differences else self.steps
        return chosen if steps == AUTO else int(steps)

    @property
    def length(self) -> str:
        """Its steps, of how many."""
        return f"{self.steps:,}" + (f" of {self.full:,}" if self.full else "")

    @property
    def short(self) -> bool:
        """Whether it was trained for less than the recipe's length; of a length that is not known, it is taken to be."""
        return self.full is None or self.steps < self.full

    @property
    def verdict(self) -> str:
        """A key of VERDICTS."""
        return "reached" if self.apart <= 0 else "short training" if self.short else "not reached"

    def text(self, key: str, sign: str = "") -> str:
        """The mean over trainings of a field: an error as precise as the paper's, a bias in percent."""
        found = [v for r in self.group.results if (v := number(r.values, key)) is not None]
        if not found:
            return DASH
        mean = statistics.fmean(found)
        return f"{text_of(100 * mean, 1, '+')} %" if key == "bias" else text_of(mean, self.digits, sign)

    @property
    def digits(self) -> int:
        """Decimals of an error."""
        return show.digits_of(self.study, self.study.metrics.index("mae"))

    @property
    def apart(self) -> float:
        """MAE less the paper's, as printed: rounded before it is compared."""
        place = self.study.metrics.index("mae")
        mine, printed = self.group.mean(place), self.cell.printed(place)
        return float("nan") if mine is None or printed is None else round(mine, self.digits) - printed

    @property
    def ends(self) -> tuple[float, float] | None:
        """From the lowest to the highest end of the seeds' 95 % intervals of the MAE; none of a mean over folds."""
        if len(self.cell.parts) > 1:
            return None
        found = [e for r in self.group.results if (e := (r.values.get("intervals") or {}).get("mae"))]
        return (min(e[0] for e in found), max(e[1] for e in found)) if found else None


def write(results: Sequence[Result], out: Path) -> list[Path]:
    """Write `out` and, into the folder of the same name beside it, a page per table; pages of tables that are gone go."""
    if not results:
        raise DataError("there are no results to write about; --results names the folder they are in")
    made = {out.parent / name: text for name, text in documents(results, out.stem).items()}
    for path in filter(Path.exists, made):
        if not path.read_text(encoding="utf-8").startswith(WRITTEN):
            raise DataError(f"{path} was written by hand; move it, or give another --out")
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    for path in (out.parent / out.stem).glob("*.md"):
        if path not in made and path.read_text(encoding="utf-8").startswith(WRITTEN):
            path.unlink()
    return list(made)


def documents(results: Sequence[Result], stem: str = "results") -> dict[str, str]:
    """Every document by its path beside the first."""
    studies = [tables.load(name) for name in tables.names()]
    shown = [(show.view(s, results), show.view(s, results, everything=True)) for s in studies]
    judged = {s.name: claims.judge(s, results) for s in studies}
    pages = {
        f"{stem}/{today.study.name}.md": table_page(today, every, stem, judged[today.study.name])
        for today, every in shown
    }
    first = recipe_table.table(results, studies)
    return {f"{stem}.md": front_page(shown, stem, [j for each in judged.values() for j in each], first), **pages}


# -- the page of a table -------------------------------------------------------------------------------------------------


def table_page(today: View, every: View, stem: str, judged: Sequence[Judged] = ()) -> str:
    """The table with today's recipe and its claims; below it, marked as such, results of other settings."""
    study = today.study
    now = [x.group for x in today.lines]
    others = replace(every, lines=tuple(x for x in every.lines if x.group and x.group not in now))
    # What is left out of the first table is in the second.
    today = replace(today, remarks=tuple(words for words in today.remarks if "left out" not in words))
    lead = f"{study.where}. " * bool(study.where)
    lead += f"Cells without a figure are not measured. [All results](../{stem}.md)."
    out = [WRITTEN, "", f"# {study.title}", "", lead]
    out += ["", f"## Today's recipe ({RECIPE})", ""]
    out += [markdown_table(show.columns(today), show.rows(today)), show.markdown_below(today)]
    if judged:
        out += ["## Claims", "", markdown_table(claims.HEAD, claims.rows(judged))]
    if others.lines:
        out += ["## Other settings", "", OTHERS, "", markdown_table(show.columns(others), show.rows(others))]
        out += [show.caption(others), ""]
    return "\n".join(out).rstrip("\n") + "\n"


OTHERS = "Not today's recipe: each line says which recipe, how its weights were chosen, and what else differs."


# -- the first page ------------------------------------------------------------------------------------------------------


def front_page(shown: Sequence[tuple[View, View]], stem: str, judged: Sequence[Judged] = (), today: str = "") -> str:
    """What is reached, what the paper says, how sure that is, the paper's claims; then the pages of the tables.

    `today` is the table of today's recipe on all data.
    """
    found = list(reached(every for _, every in shown))
    out = [WRITTEN, "", "# Results", "", SHORT, "", "## One recipe, all data", "", TODAY, "", today]
    out += ["## Recipe by recipe", *_in_short([today.study for today, _ in shown], found), ""]
    out += ["## What we reach", "", WHAT, "", _what(found)]
    out += ["## What the paper says", "", PAPER, "", _paper(found, stem)]
    out += ["## How sure we are", "", SURE, "", _sure(found)]
    out += ["## Claims of the paper", "", f"{claims.counted(judged).capitalize()}. {CLAIMS}", "", _claims(judged)]
    out += ["## Every table", "", *(_link(*views, stem) for views in shown), "", AFTER]
    return "\n".join(out)


VERDICTS = {
    "reached": "**reached**",
    "not reached": "**not reached**",
    "short training": "not reached, but trained for less than the recipe's length",
}
SHORT = (
    "What papm reaches beside what the paper prints, with exact dots: method, network, and our test MAE less the paper's. Ours "
    "are the last averaged weights; many papers print the lowest of many evaluations on the test images. What was tried, why "
    "the recipe changed, and what [displaced dots](notebook/displaced-dots.md) cost is in the [notebook](notebook/README.md)."
)
TODAY = (
    f"Recipe {RECIPE}, exact dots, test images: MAE and bias of the total count; bold where it is at or below the paper's MAE. "
    "Where no figure of the paper stands beside it, the paper has no such row. Lengths differ: compare methods only where they "
    "are equal. A recipe is what `papm train` does where nothing is said; it gets a new number when figures may change by it "
    "([what changed, and why](notebook/counts-too-low.md))."
)
WHAT = (
    "Exact dots, all training images, the last averaged weights: the test images choose nothing. Mean over seeds. Of each "
    "recipe the training that differs least from today's settings, the longest of several. Bias: error of the total count."
)
PAPER = "MAE / RMSE as printed, and how far ours is from it. RMSE is what papers call MSE."
SURE = (
    "Interval: 95 % over the test images, from the lowest end of any seed to the highest. Two networks differ by more than "
    "chance only where seeds and images say so; one seed says little about a difference of two people."
)
CLAIMS = (
    "With today's settings. Confirmed: the 95 % interval of the difference, over images and seeds, lies on the claimed side of "
    "zero; refuted: on the other; not confirmed: it holds zero. It is far wider where images are not paired. With one seed it "
    "does not include run-to-run variance, and a verdict compares two runs, not two methods. Claims that are not measured are "
    "on the pages of their tables."
)
AFTER = """## More

- [How a result is made, and what its fields mean](guide/reports.md#results)
- [Notebook](notebook/README.md): what was asked and tried, a page per question
- [Speed](speed.md)
"""


def reached(views: Iterable[View]) -> Iterator[Reached]:
    """For each dataset, method and network of the tables, and each recipe, one group of results on exact dots."""
    seen: set[tuple[str, ...]] = set()
    for shown in (v for v in views if "mae" in v.study.metrics):
        for cell in shown.study.cells:
            key = tuple(str(cell.settings[k]) for k in NAMED)
            if not cell.plain or not cell.paper or key in seen:
                continue
            groups = [x.group for x in shown.lines if x.cell is cell and x.group and x.group.select == "last"]
            for recipe in sorted({g.recipe for g in groups} - {"own"}, reverse=True):
                seen.add(key)
                yield min((Reached(shown.study, cell, g) for g in groups if g.recipe == recipe), key=_nearest)


def _nearest(one: Reached) -> tuple[int, bool, int, int]:
    """Fewest other settings than today's, then its length, then most steps, then most seeds; never the error."""
    other = [k for k in one.group.differences if k != "steps"]
    return len(other), "steps" in one.group.differences, -one.steps, -len(one.group.seeds)


def _in_short(studies: Sequence[Study], found: Sequence[Reached]) -> list[str]:
    """What is reached and what not, recipe by recipe, in a few lines."""
    out: list[str] = []
    for recipe in dict.fromkeys([RECIPE, *sorted({r.group.recipe for r in found}, reverse=True)]):
        mine = [r for r in found if r.group.recipe == recipe]
        n = sum(r.verdict == "reached" for r in mine)
        count = f"{n} of {len(mine)} reach the paper's MAE" if mine else "no result"
        out += ["", f"**{'Today' if recipe == RECIPE else 'Before'}, recipe {recipe}**: {count}.", ""]
        for dataset in dict.fromkeys(r.who[0] for r in mine):
            here = sorted((r for r in mine if r.who[0] == dataset), key=lambda r: r.apart)
            out += [f"- {dataset}, {VERDICTS[v]}: {_brief(lines)}" for v in VERDICTS if (lines := _of(here, v))]
    known = {str(r.cell.settings["dataset"]) for r in found}
    none = [f"`{d}`" for d in dict.fromkeys(d for s in studies for d in s.datasets) if d not in known]
    return [*out, *(["", f"**Not measured on test images, by any recipe**: {', '.join(none)}."] if none else [])]


def _of(lines: Iterable[Reached], verdict: str) -> list[Reached]:
    return [r for r in lines if r.verdict == verdict]


def _brief(lines: Iterable[Reached]) -> str:
    """Who is how far from the paper: `al-papm` VGG19 +1.3."""
    return ", ".join(f"{r.who[1]} {r.cell.settings['backbone']} {text_of(r.apart, r.digits, '+')}" for r in lines) + "."


HEAD = ["dataset", "method", "network", "recipe"]


def _what(found: Iterable[Reached]) -> str:
    head = [*HEAD, "MAE / RMSE", "bias", "steps, of the recipe's"]
    body = [[*r.who, r.group.recipe, f"{r.text('mae')} / {r.text('rmse')}", r.text("bias"), r.length] for r in found]
    return markdown_table(head, body)


def _paper(found: Iterable[Reached], stem: str) -> str:
    head = [*HEAD, "MAE", "paper", "difference", "verdict"]
    body = []
    for r in found:
        printed = " / ".join(dict(zip(r.study.metrics, r.cell.paper)).get(m, DASH) for m in ("mae", "rmse"))
        said = " (quoted)" * r.cell.quoted + f" ([note]({stem}/{r.study.name}.md))" * bool(r.cell.notes)
        apart = text_of(r.apart, r.digits, "+")
        body.append([*r.who, r.group.recipe, r.text("mae"), printed + said, apart, r.verdict])
    return markdown_table(head, body)


def _sure(found: Iterable[Reached]) -> str:
    head = [*HEAD, "MAE, by seed", "interval", "the paper's figure", "settings that are not today's"]
    body = []
    for r in found:
        seeds = ", ".join(text_of(v, r.digits) for v in r.group.values(r.study.metrics.index("mae")))
        ends, printed = r.ends, r.cell.printed(r.study.metrics.index("mae"))
        inside = DASH if ends is None or printed is None else "inside" if ends[0] <= printed <= ends[1] else "outside"
        between = DASH if ends is None else " to ".join(text_of(e, r.digits) for e in ends)
        words = training.in_words({k: v for k, v in r.group.differences.items() if k != "steps"})
        body.append([*r.who, r.group.recipe, seeds, between, inside, f"`{words}`" if words else ""])
    return markdown_table(head, body)


def _claims(judged: Iterable[Judged]) -> str:
    return markdown_table(claims.HEAD, claims.rows([j for j in judged if j.verdict != "not measured"]))


def _link(today: View, every: View, stem: str) -> str:
    """A table's page, and how much of it is measured."""
    study = today.study
    known, now = (len(study.cells) - len({id(x.cell) for x in v.lines if x.group is None}) for v in (every, today))
    where = f" ({study.where})" if study.where else ""
    more = f", {known} with any" if known > now else ""
    title = f"[{study.title}]({stem}/{study.name}.md){where}"
    return f"- {title}: {now} of {n_of(len(study.cells), 'cell')} with today's settings{more}"
