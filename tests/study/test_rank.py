"""Which variant is best over several datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from papm.errors import ConfigError
from papm.study import tables, training
from papm.study.rank import rank
from papm.study.results import Result

RAW: dict[str, Any] = {
    "metrics": ["mae", "bias", "bias-train"],
    "all": {"dataset": "synthetic", "backbone": "tiny", "method": "gaussian"},
    "columns": [{"name": "crowd", "data.look": "crowd"}, {"name": "cells", "data.look": "cells"}],
    "rows": [{"name": "plain"}, {"name": "colour", "colour": 0.3}, {"name": "never", "colour": 0.5}],
}
STUDY = tables.parse(RAW, "mine", "mine.yaml")


def result(row: str, column: str, mae: float, bias: float = 0.0) -> Result:
    cell = next(c for c in STUDY.cells if (c.row, c.column) == (row, column))
    values = {**{k: cell.settings[k] for k in training.NAMED}, "seed": 0, "select": "last", "mae": mae, "bias": bias}
    return Result(Path("r.json"), {**values, "train": {"bias": bias / 2}}, training.asked(cell.settings))


def test_rows_by_their_mean_ratio_to_the_lowest() -> None:
    found = rank(STUDY, [result("plain", "crowd", 10, -0.1), result("plain", "cells", 1), result("colour", "crowd", 5),
                         result("colour", "cells", 2)])  # fmt: skip
    assert [(r.name, r.score) for r in found.rows] == [("plain", 1.5), ("colour", 1.5), ("never", None)]
    assert found.compared == ("crowd", "cells")
    better = rank(STUDY, [result("plain", "crowd", 10), result("plain", "cells", 1), result("colour", "crowd", 5),
                          result("colour", "cells", 1.5)])  # fmt: skip
    assert [(r.name, r.score) for r in better.rows[:2]] == [("colour", 1.25), ("plain", 1.5)]
    _, body = found.table()
    assert body[0] == ["1", "plain", "1.500", "10.00 (−10.0 %, −5.0 %)", "1.00 (+0.0 %, +0.0 %)"]
    assert body[-1] == ["–", "never", "–", "–", "–"]


def test_a_row_gains_nothing_by_what_it_lacks() -> None:
    found = rank(STUDY, [result("plain", "crowd", 10), result("colour", "crowd", 5), result("plain", "cells", 1)])
    assert found.compared == ("crowd",) and [r.name for r in found.rows[:2]] == ["colour", "plain"]
    assert "one seed" in found.words()[1] and "cells" in found.words()[2] and found.table()[0][-1] == "cells *"


def test_nothing_measured_and_nothing_to_rank_by() -> None:
    assert [r.score for r in rank(STUDY, []).rows] == [None] * 3
    with pytest.raises(ConfigError, match="no MAE to rank by"):
        rank(tables.parse({**RAW, "metrics": ["nae"]}, "mine", "mine.yaml"), [])
