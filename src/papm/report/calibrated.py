"""What a calibration after the training is worth on the test images of the run, which had no part in it."""

from __future__ import annotations

from papm import checkpoint
from papm.errors import PapmError
from papm.metrics.conformal import coverage
from papm.metrics.counting import counting_errors
from papm.report import page
from papm.report.load import Run
from papm.text import n_of


def calibrated_figures(run: Run) -> list[tuple[str, str]]:
    """The factor, the error with it, and how often the intervals hold the truth; nothing where the model has none of it."""
    try:
        contract = checkpoint.load(run.folder / "best.ckpt")[0].inference
    except PapmError:  # not there, or not to be read: the page is about the rest
        return []
    rows: list[tuple[str, str]] = []
    if contract is None or not run.counted:
        return rows
    counts, truth = [contract.factor * c.predicted for c in run.counted], [c.truth for c in run.counted]
    if (made := contract.calibration) is not None:
        by = f"× {made.scale:.3f} (95 % {made.low:.3f} to {made.high:.3f}), from {n_of(made.images, 'checked image')}"
        rows += [("calibrated since", by), ("MAE with that", page.figure(counting_errors(counts, truth).mae))]
    if (known := contract.interval) is not None:
        held = coverage([known.around(c) for c in counts], truth)
        rows.append((f"intervals of {100 * known.level:g} % hold the truth of", f"{100 * held:.0f} % of these images"))
    return rows
