"""`papm eval` end to end: counts and points of a trained model, and the text files of the NWPU protocol."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from papm import data
from papm.data.convert import write_folder
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.metrics import box_sigmas, counting_errors, nwpu, qnrf, within
from papm.predict.localization import in_region
from papm.predict.predictor import Counter

SCENES = "synthetic:look=cells,train=6,test=3,size=64x80,count=4-9"

TRUTH = "1 2 0 0 3 5 1 6 0 3 5 2\n2 1 50 50 4 6 2\n3 0\n"
FOUND = "1 2 5 0 11 0\n3 1 9 9\n"


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert self.code == 2 and self.out == "" and len(lines) == 1 and lines[0].startswith("papm: "), self
        return lines[0]


Papm = Callable[..., Ran]


@pytest.fixture
def papm(run_papm: Callable[..., tuple[int, str, str]]) -> Papm:
    return lambda *words: Ran(*run_papm("eval", *words))


class World(NamedTuple):
    run: Path
    photos: Path  # points alone: no sizes of objects


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("eval")
    for name, dataset in data.open_spec(SCENES).items():
        write_folder(dataset, root / "photos" / name)
    short = {"data": SCENES, "steps": 60, "crop": 64, "batch": 4, "device": "cpu"}
    engine.train(resolve("hd-papm", "tiny", short), root / "run")
    return World(root / "run", root / "photos")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "found.txt").write_text(FOUND)
    (tmp_path / "truth.txt").write_text(TRUTH)
    return ("--predictions", str(tmp_path / "found.txt"), "--ground-truth", str(tmp_path / "truth.txt"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


class TestCounts:
    def test_json_and_csv(self, papm: Papm, world: World, tmp_path: Path) -> None:
        found = papm(world.run, world.photos, "--device", "cpu", "--json", "--out", tmp_path / "counts.csv").json
        counter = Counter.load(world.run, "cpu")
        samples = data.open_spec(str(world.photos))["test"]
        counts = [counter.predict(s.image, points=False).count for s in samples]
        score = counting_errors(counts, [s.count for s in samples])
        assert found["mae"] == pytest.approx(score.mae, abs=1e-3) and found["rmse"] == pytest.approx(
            score.rmse, abs=1e-3
        )
        assert found["split"] == "test" and found["method"] == "hd-papm" and found["model"] == str(world.run)
        written = {r["image"]: float(r["predicted"]) for r in rows(tmp_path / "counts.csv")}
        assert [written[s.name] for s in samples] == pytest.approx(counts, abs=1e-2)

    def test_table(self, papm: Papm, world: World) -> None:
        said = papm(world.run, world.photos, "--split", "train").out
        assert "MAE" in said and "RMSE" in said and "6 images" in said and "Total count: bias" in said

    def test_data_without_splits_is_counted_whole(self, papm: Papm, world: World, tmp_path: Path) -> None:
        write_folder(data.open_spec(SCENES)["test"], tmp_path / "flat")
        assert papm(world.run, tmp_path / "flat", "--json").json["split"] == "all"
        assert "unknown split 'val'" in papm(world.run, tmp_path / "flat", "--split", "val").sentence

    def test_several_models_count_together(self, papm: Papm, world: World, tmp_path: Path) -> None:
        short = {"data": SCENES, "steps": 40, "crop": 64, "batch": 4, "device": "cpu", "options": {"max_side": 64}}
        engine.train(resolve("gaussian", "tiny", short), tmp_path / "other")
        words = (world.run, world.photos, "--with", tmp_path / "other", "--device", "cpu")
        found = papm(*words, "--json", "--out", tmp_path / "counts.csv").json
        lists = [tmp_path / "run.csv", tmp_path / "other.csv"]
        runs = (world.run, tmp_path / "other")
        alone = [papm(run, world.photos, "--json", "--out", out).json for run, out in zip(runs, lists)]
        assert found["models"] == {
            "run": {k: pytest.approx(alone[0][k]) for k in ("mae", "rmse")},
            "other": {k: pytest.approx(alone[1][k]) for k in ("mae", "rmse")},
        }
        each = [{r["image"]: float(r["predicted"]) for r in rows(out)} for out in lists]
        assert each[0] != pytest.approx(each[1], rel=0.05)
        for row in rows(tmp_path / "counts.csv"):
            assert [float(row[k]) for k in ("by_run", "by_other")] == [e[row["image"]] for e in each]
            assert float(row["predicted"]) == pytest.approx(
                (each[0][row["image"]] + each[1][row["image"]]) / 2, abs=2e-3
            )
        truth = {r["image"]: float(r["truth"]) for r in rows(lists[0])}
        score = counting_errors([(each[0][n] + each[1][n]) / 2 for n in truth], list(truth.values()))
        assert found["mae"] == pytest.approx(score.mae, abs=2e-3)
        said = papm(*words).out
        assert f"run {alone[0]['mae']:.2f}, other {alone[1]['mae']:.2f}" in said
        assert "leave out --game or --with" in papm(*words, "--game").sentence
        places = papm(*words, "--localization", "nwpu", "--radius", "8", "--json").json
        assert places["model"] == str(world.run) and places["with"] == [str(tmp_path / "other")]

    def test_bad_input(self, papm: Papm, world: World, tmp_path: Path) -> None:
        assert "give a model and data: papm eval MODEL DATA" in papm().sentence
        assert "give a model and data" in papm(world.run).sentence
        assert "use auto, cpu or cuda" in papm(world.run, world.photos, "--device", "tpu").sentence
        assert "unknown split 'tset'; did you mean 'test'?" in papm(world.run, world.photos, "--split", "tset").sentence
        assert str(tmp_path / "none") in papm(tmp_path / "none", world.photos).sentence
        assert str(tmp_path / "none") in papm(world.run, tmp_path / "none").sentence


class TestPointsOfAModel:
    @pytest.fixture
    def found(self, world: World) -> list[torch.Tensor]:
        """What the model finds in the test scenes."""
        counter = Counter.load(world.run, "cpu")
        points = [counter.predict(s.image).points for s in data.open_spec(SCENES)["test"]]
        assert sum(len(p) for p in points if p is not None) > 5
        return [p for p in points if p is not None]

    def test_sizes_come_from_boxes(self, papm: Papm, world: World, found: list[torch.Tensor], tmp_path: Path) -> None:
        said = papm(world.run, SCENES, "--localization", "nwpu", "--json", "--out", tmp_path / "points.csv").json
        samples = data.open_spec(SCENES)["test"]
        sizes = [box_sigmas(s.boxes) for s in samples if s.boxes is not None]
        small, large, levels = ([s[k] for s in sizes] for k in range(3))
        truth = [s.points for s in samples]
        for name, score in nwpu(found, truth, small, large, levels).items():
            assert said[name] == score.to_dict()
        assert said["sigma_l"]["f1"] >= said["sigma_s"]["f1"] and said["method"] == "hd-papm"
        written = rows(tmp_path / "points.csv")
        assert [int(r["predicted"]) for r in written] == [len(p) for p in found]
        assert sum(int(r["matched_sigma_l"]) for r in written) == said["sigma_l"]["tp"]

    def test_fixed_radii_need_no_sizes(self, papm: Papm, world: World) -> None:
        said = papm(world.run, world.photos, "--localization", "nwpu", "--radius", "4,8", "--json").json
        samples = data.open_spec(str(world.photos))["test"]
        counter = Counter.load(world.run, "cpu")
        points = [counter.predict(s.image).points for s in samples]
        for radius in (4, 8):
            score = within(points, [s.points for s in samples], float(radius))  # type: ignore[arg-type]
            assert said["radius"][str(radius)] == score.to_dict()
        refused = papm(world.run, world.photos, "--localization", "nwpu").sentence
        assert "points without sizes" in refused and "--radius 4,8" in refused and "--localization qnrf" in refused

    def test_qnrf(self, papm: Papm, world: World, found: list[torch.Tensor]) -> None:
        truth = [s.points for s in data.open_spec(SCENES)["test"]]
        counter = Counter.load(world.run, "cpu")
        scores = [counter.predict(s.image).scores for s in data.open_spec(SCENES)["test"]]
        expected = qnrf(found, truth, scores=scores)  # type: ignore[arg-type]
        said = papm(world.run, SCENES, "--localization", "qnrf", "--json").json
        assert {k: said[k] for k in expected.to_dict()} == expected.to_dict()
        assert 0 < said["auc"] <= said["recall"]
        assert f"as the score falls, mean of 1…100 px: {expected.auc:.4f}" in papm(
            world.run, SCENES, "--localization", "qnrf"
        ).out.replace("\n", " ")
        said = papm(world.run, SCENES, "--localization", "qnrf", "--matching", "maximum", "--json").json
        assert said["f1"] == pytest.approx(qnrf(found, truth, matching="maximum").curves["f1"].mean())


class TestFiles:
    """Image 1: objects at 0 and 6 that only a maximum matching finds both; 2: nothing predicted; 3: nothing there."""

    def test_nwpu(self, papm: Papm, files: tuple[str, ...], tmp_path: Path) -> None:
        said = papm("--localization", "nwpu", *files, "--json", "--out", tmp_path / "o.csv").json
        assert set(said) == {"sigma_l", "sigma_s"}
        large, small = said["sigma_l"], said["sigma_s"]
        assert [large[k] for k in ("tp", "fp", "fn")] == [2, 1, 1] and [small[k] for k in ("tp", "fp", "fn")] == [
            1,
            2,
            2,
        ]
        assert large["precision"] == large["recall"] == large["f1"] == pytest.approx(2 / 3)
        assert large["recall_by_level"] == {"1": 1.0, "2": 0.5} and small["recall_by_level"] == {"1": 0.0, "2": 0.5}
        assert (tmp_path / "o.csv").read_text().splitlines() == [
            "image,predicted,objects,matched_sigma_l,matched_sigma_s",
            "1,2,2,2,1",
            "2,0,1,0,0",
            "3,1,0,0,0",
        ]

    def test_qnrf(self, papm: Papm, files: tuple[str, ...], tmp_path: Path) -> None:
        said = papm("--localization", "qnrf", *files, "--json", "--out", tmp_path / "o.csv").json
        assert said["matching"] == "greedy" and said["curves"]["recall"][4] == pytest.approx(1 / 3)
        assert said["auc"] is None  # the files have no scores
        assert said["curves"]["recall"][10] == pytest.approx(2 / 3)  # the second pair is 11 px long
        said = papm("--localization", "qnrf", "--matching", "maximum", *files, "--json").json
        assert said["curves"]["recall"][4] == pytest.approx(2 / 3) and said["auc_threshold"] == said["f1"]
        assert (tmp_path / "o.csv").read_text().splitlines()[1] == "1,2,2,1,1,2,2"

    def test_radius(self, papm: Papm, files: tuple[str, ...]) -> None:
        said = papm("--localization", "nwpu", "--radius", "1, 5.5", *files, "--json").json
        assert said["radius"]["1"]["tp"] == 1 and said["radius"]["5.5"]["tp"] == 2

    def test_tables(self, papm: Papm, files: tuple[str, ...]) -> None:
        said = papm("--localization", "nwpu", *files)
        assert "1 of 3 images have no line in" in said.err  # image 2
        assert said.code == 0 and "sigma_l" in said.out and "66.67" in said.out and "3 images: 3 points" in said.out
        said = papm("--localization", "qnrf", *files)
        assert said.code == 0 and "greedy" in said.out and "100 px" in said.out and said.out.count("AUC") == 2
        assert "not comparable, the predictions have no scores" in said.out
        assert "8 px" in papm("--localization", "nwpu", "--radius", "8", *files).out

    def test_the_truth_as_its_own_prediction(self, papm: Papm, tmp_path: Path) -> None:
        truth, found = tmp_path / "t.txt", tmp_path / "p.txt"
        truth.write_text("1 2 4 4 0 0 0 9 9 0 0 5\n2 0\n")
        found.write_text("1 2 9 9 4 4\n")
        said = papm("--localization", "nwpu", "--predictions", found, "--ground-truth", truth, "--json").json
        assert all(said[s][k] == 1 for s in ("sigma_l", "sigma_s") for k in ("precision", "recall", "f1"))

    def test_bad_files(self, papm: Papm, files: tuple[str, ...], tmp_path: Path) -> None:
        (tmp_path / "found.txt").write_text(FOUND + "4 0\n")
        assert "found.txt:3: image 4 is not in the ground truth" in papm("--localization", "nwpu", *files).sentence
        (tmp_path / "truth.txt").write_text("1 2 0 0\n")
        assert "truth.txt:1: 2 points need 10 numbers" in papm("--localization", "nwpu", *files).sentence
        (tmp_path / "truth.txt").unlink()
        assert "truth.txt: no such annotation file" in papm("--localization", "qnrf", *files).sentence


class TestWrongUsage:
    def test_options_that_do_not_go_together(self, papm: Papm, files: tuple[str, ...]) -> None:
        assert "--predictions goes with --localization" in papm(*files).sentence
        assert "--radius goes with --localization nwpu or qnrf" in papm("--radius", "4").sentence
        assert "--matching goes with --localization" in papm("--matching", "greedy").sentence
        assert "give both files" in papm("--localization", "nwpu", *files[:2]).sentence
        assert "either MODEL and DATA, or" in papm("run", "photos", "--localization", "nwpu", *files).sentence
        assert "give a model and data" in papm("--localization", "nwpu").sentence
        assert (
            "--radius goes with --localization nwpu;"
            in papm("--localization", "qnrf", "--radius", "4", *files).sentence
        )
        assert (
            "--matching goes with --localization qnrf;"
            in papm("--localization", "nwpu", "--matching", "greedy", *files).sentence
        )

    def test_bad_values(self, papm: Papm, files: tuple[str, ...]) -> None:
        assert "did you mean 'qnrf'?" in papm("--localization", "qnfr", *files).sentence
        assert "did you mean 'maximum'?" in papm("--localization", "qnrf", "--matching", "maximun", *files).sentence
        for bad in ("", "4,", "-4", "0", "nan", "inf", "four"):
            assert (
                "--radius is distances in pixels" in papm("--localization", "nwpu", f"--radius={bad}", *files).sentence
            )


def test_points_outside_a_region_do_not_count() -> None:
    roi = torch.zeros(4, 6, dtype=torch.bool)
    roi[1, 2] = True
    points = torch.tensor([[2.0, 1.0], [2.99, 1.99], [3.0, 1.0], [-1.0, 1.0], [2.0, 9.0]])
    assert in_region(points, roi).tolist() == [True, True, False, False, False]
    assert in_region(points, None).all() and len(in_region(torch.zeros(0, 2), roi)) == 0
