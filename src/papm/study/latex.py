"""A measured table for a LaTeX paper: a line per row of the study, mean ± standard deviation over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from papm.study.results import Group
from papm.study.show import SELECTED, View, digits_of

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "σ": r"$\sigma$", "λ": r"$\lambda$", "τ": r"$\tau$",
    "×": r"$\times$", "−": "$-$", "±": r"$\pm$", "–": "--", "…": r"\ldots{}", "ε": r"$\varepsilon$",
    "·": r"$\cdot$", "²": r"$^2$", "³": r"$^3$", "⁴": r"$^4$", "⁶": r"$^6$",
    "≤": r"$\le$", "≥": r"$\ge$", "<": r"$<$", ">": r"$>$", "|": r"$|$", "½": r"$\frac12$", "¼": r"$\frac14$",
    "[": "{[}", "*": "{*}",  # bare they are arguments of the \\ of the line before
}  # fmt: skip


def escape(text: str) -> str:
    r"""Words that LaTeX prints as they are written, on one line.

    >>> escape("a_b, σ = 8 & 50 %")
    'a\\_b, $\\sigma$ = 8 \\& 50 \\%'
    """
    return "".join(_SPECIAL.get(c, c) for c in " ".join(text.split()))


def latex(shown: View) -> str:
    """A `tabular` with the rules of booktabs; what must be known about it stands above it as comments.

    A cell is the mean over seeds, `\\pm` the standard deviation of one training (n - 1 below the sum) where there are two seeds
    or more; -- where nothing is measured. Nothing is printed in bold: whether a difference is more than chance is not in it.
    """
    study = shown.study
    figures = study.figures
    groups = shown.groups()
    names, places = (list(dict.fromkeys(each)) for each in zip(*groups))
    said = (study.title, f"Mean over seeds, {SELECTED[shown.select]}.", _seeds(list(groups.values())), *shown.remarks)
    out = ["% " + " ".join(words.split()) for words in said if words]
    out += ["% needs \\usepackage{booktabs}", f"\\begin{{tabular}}{{l{'r' * len(places) * len(figures)}}}", "\\toprule"]
    if places != [""]:
        wide = len(figures)
        heads = [escape(p) if wide == 1 else f"\\multicolumn{{{wide}}}{{c}}{{{escape(p)}}}" for p in places]
        out.append(" & ".join(["", *heads]) + r" \\")
    out.append(" & ".join(["", *[escape(m.title) for _ in places for m in figures]]) + r" \\")
    out.append("\\midrule")
    for name in names:
        texts = [
            _figure(groups.get((name, place)), k, digits_of(study, k)) for place in places for k in range(len(figures))
        ]
        out.append(" & ".join([escape(name), *texts]) + r" \\")
    return "\n".join([*out, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _seeds(groups: Sequence[Group | None]) -> str:
    """Which seeds the figures are means of."""
    sets = dict.fromkeys(", ".join(str(s.seed) for s in g.seeds) for g in groups if g is not None)
    if not sets:
        return ""
    return f"Seeds: {next(iter(sets))}." if len(sets) == 1 else f"Seeds, not the same in all cells: {'; '.join(sets)}."


def _figure(group: Group | None, metric: int, digits: int) -> str:
    values = [] if group is None else group.values(metric)
    if not values:
        return "--"
    spread = f" \\pm {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"${statistics.fmean(values):.{digits}f}{spread}$"
