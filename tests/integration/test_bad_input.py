"""Wrong usage and bad input of train, eval and predict: one sentence that names the culprit, exit code 2, nothing written."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from papm import checkpoint, models

Run = Callable[..., tuple[int, str, str]]
QUICK = ["--backbone", "tiny", "steps=1", "crop=32", "batch=1", "device=cpu"]


@pytest.fixture
def run(run_papm: Run) -> Run:
    return run_papm


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A good little dataset; each test spoils it in one way."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(6):
        Image.fromarray(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(folder / f"{k}.jpg")
        (folder / f"{k}.txt").write_text("10 12\n30.5 20\n")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.ckpt"
    network = models.create("tiny")
    checkpoint.save(path, checkpoint.ModelSpec("tiny", method="hd-papm"), network.state_dict())
    return path


def one_sentence(code: int, err: str, *names: str) -> None:
    assert code == 2, err
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("papm: "), err
    assert "Traceback" not in err
    for name in names:
        assert name in err, err


def truncate(folder: Path) -> None:
    data = (folder / "3.jpg").read_bytes()
    (folder / "3.jpg").write_bytes(data[: len(data) // 2])


def write(name: str, text: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_text(text)

    return spoil


def drop_images(folder: Path) -> None:
    for file in folder.glob("*.jpg"):
        file.unlink()


def make_fractions(folder: Path) -> None:
    for file in folder.glob("*.txt"):
        file.write_text("0.25 0.5\n0.1 0.9\n")


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (make_fractions, ("photos", "fractions", "multiply x by the width")),
        (truncate, ("3.jpg",)),
        (write("2.txt", "10 12\nnan 4\n"), ("2.txt", "2")),
        (write("2.txt", "10 12\nten 4\n"), ("2.txt", "2")),
        (write("2.txt", "10\n"), ("2.txt", "1")),
        (write("2.txt", "inf 4\n"), ("2.txt", "1")),
        (drop_images, ("photos",)),
        (lambda folder: (folder / "2.txt").unlink(), ("2",)),
    ],
    ids=["fractions", "truncated", "nan", "text", "one-number", "inf", "no-images", "no-annotation"],
)
def test_train_refuses_bad_data(
    tmp_path: Path, photos: Path, run: Run, spoil: Callable[[Path], None], names: tuple[str, ...]
) -> None:
    spoil(photos)
    code, out, err = run("train", f"folder:{photos}", *QUICK, "--out", tmp_path / "run")
    one_sentence(code, err, *names)
    assert not out and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--method", "hd-pamp"], ("hd-pamp", "hd-papm")),
        (["--backbone", "vgg20"], ("vgg20", "vgg19")),
        (["stepz=4"], ("stepz", "steps")),
        (["steps=many"], ("steps", "many")),
        (["steps"], ("steps", "key=value")),
        (["loss.sigmma=4"], ("sigmma", "sigma")),
        (["network.strid=4"], ("strid", "stride")),
        (["select=best"], ("select", "val, last, test")),
        (["crop=100"], ("crop", "100")),
        (["device=cuda"], ("CUDA", "device=cpu")),
        (["--init", "nowhere.ckpt"], ("nowhere.ckpt",)),
        (["--config", "nowhere.yaml"], ("nowhere.yaml",)),
        (["--resume"], ("no run to resume",)),
        (["crop=1e9"], ("crop must be at most 16384",)),
        (["batch=1e12"], ("batch must be at most",)),
        (["noise=1e30"], ("noise must be at most",)),
        (["steps=99999999999999999999"], ("steps",)),
        (["seed=99999999999999999999"], ("seed",)),
        (["lr=" + "1" * 400], ("lr",)),
        (["network.num_classes=1000000000"], ("num_classes",)),
    ],
)
def test_train_refuses_wrong_words(
    tmp_path: Path, photos: Path, run: Run, words: list[str], names: tuple[str, ...]
) -> None:
    if "device=cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    given = [w for w in QUICK if not any(w.split("=")[0] == x.split("=")[0] for x in words)]
    if "--backbone" in words:
        given = given[2:] if given[0] == "--backbone" else [g for g in given if g != "tiny"]
    code, out, err = run("train", f"folder:{photos}", *given, *words, "--out", tmp_path / "run")
    one_sentence(code, err, *names)
    assert not out and not (tmp_path / "run").exists()


def test_what_is_quoted_may_be_of_any_length(tmp_path: Path, run: Run) -> None:
    """The sentence still begins with the key and ends as it did."""
    code, _, err = run("train", "synthetic", *QUICK, "--out", tmp_path / "run", f"margin={'a' * 100_000}")
    one_sentence(code, err, "margin: cannot read the value 'aaa", "aaa…'")
    assert len(err) < 1100


def test_train_refuses_unknown_data(tmp_path: Path, run: Run) -> None:
    code, _, err = run("train", "shanghaitech:nowhere", *QUICK, "--out", tmp_path / "run")
    one_sentence(code, err, "shanghaitech", "shanghaitech-a")
    code, _, err = run("train", tmp_path / "nowhere", *QUICK, "--out", tmp_path / "run")
    one_sentence(code, err, "nowhere")


def test_a_mat_file_without_its_field(tmp_path: Path, run: Run) -> None:
    for part in ("train", "test"):
        base = tmp_path / "part_A_final" / f"{part}_data"
        (base / "images").mkdir(parents=True)
        (base / "ground_truth").mkdir()
        Image.new("RGB", (40, 40)).save(base / "images" / "IMG_1.jpg")
        scipy.io.savemat(base / "ground_truth" / "GT_IMG_1.mat", {"something": np.zeros(3)})
    code, _, err = run("train", f"shanghaitech-a:{tmp_path}", *QUICK, "--out", tmp_path / "run")
    one_sentence(code, err, "GT_IMG_1.mat", "image_info")


def test_odd_but_good_images_are_counted(tmp_path: Path, model: Path, run: Run) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    rng = np.random.default_rng(1)
    rgb = Image.fromarray(rng.integers(0, 255, (40, 56, 3), dtype=np.uint8))
    rgb.convert("L").save(folder / "grey.png")
    rgb.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(rng.integers(0, 65535, (40, 56)).astype(np.uint16)).save(folder / "sixteen.png")
    exif = Image.Exif()
    exif[274] = 6
    rgb.save(folder / "turned.jpg", exif=exif)
    code, _, err = run("predict", model, folder, "--out", tmp_path / "results", "--device", "cpu")
    assert code == 0, err
    lines = (tmp_path / "results" / "counts.csv").read_text().splitlines()
    assert len(lines) == 5
    turned = Image.open(tmp_path / "results" / "overlays" / "turned.png")
    assert turned.size[0] < turned.size[1]


def test_predict_counts_the_good_and_names_the_bad(tmp_path: Path, photos: Path, model: Path, run: Run) -> None:
    truncate(photos)
    code, out, err = run("predict", model, photos, "--out", tmp_path / "results", "--device", "cpu")
    one_sentence(code, err, "3.jpg")
    assert len((tmp_path / "results" / "counts.csv").read_text().splitlines()) == 6
    assert "5.jpg" in out


def test_predict_refuses(tmp_path: Path, photos: Path, model: Path, run: Run) -> None:
    out = tmp_path / "results"
    for words, name in (
        ((model, tmp_path / "none.jpg"), "none.jpg"),
        ((model, photos / "1.txt"), "1.txt"),
        ((photos / "1.jpg", photos / "2.jpg"), "1.jpg"),
        ((tmp_path / "no.ckpt", photos / "2.jpg"), "no.ckpt"),
        ((photos, photos / "2.jpg"), "photos"),
    ):
        code, _, err = run("predict", *words, "--out", out, "--device", "cpu")
        one_sentence(code, err, name)
        assert not out.exists()
    (tmp_path / "empty").mkdir()
    code, _, err = run("predict", model, tmp_path / "empty", "--out", out)
    one_sentence(code, err, "empty")


def test_a_checkpoint_of_another_network(tmp_path: Path, photos: Path, run: Run) -> None:
    path = tmp_path / "other.ckpt"
    checkpoint.save(path, checkpoint.ModelSpec("tiny", {"stride": 8}), models.create("tiny", stride=4).state_dict())
    code, _, err = run("predict", path, photos, "--out", tmp_path / "results", "--device", "cpu")
    one_sentence(code, err, "other.ckpt", "another network")
    code, _, err = run("eval", path, f"folder:{photos}", "--device", "cpu")
    one_sentence(code, err, "other.ckpt")


def test_eval_refuses(tmp_path: Path, photos: Path, model: Path, run: Run) -> None:
    code, _, err = run("eval", model, f"folder:{photos}", "--split", "tset", "--device", "cpu")
    one_sentence(code, err, "tset")
    code, _, err = run("eval", model, f"folder:{photos}", "--device", "gpu")
    one_sentence(code, err, "gpu")


def test_report_and_demo_refuse(tmp_path: Path, photos: Path, run: Run) -> None:
    code, _, err = run("report", photos)
    one_sentence(code, err, "photos")
    code, _, err = run("demo", "--out", photos)
    one_sentence(code, err, "photos")
    assert len(list(photos.iterdir())) == 12
    code, _, err = run("demo", "--out", tmp_path / "demo", "--look", "crowds")
    one_sentence(code, err, "crowds", "crowd")
    assert not (tmp_path / "demo").exists()


def test_usage_errors_exit_with_2(run: Run) -> None:
    for words in (["trian"], ["train"], ["predict", "x"], ["train", "a", "--nothing"]):
        code, _, err = run(*words)
        assert code == 2 and err and "Traceback" not in err


def test_the_command_line_wins_over_the_file(tmp_path: Path, photos: Path, run: Run) -> None:
    first = tmp_path / "first"
    assert run("train", f"folder:{photos}", *QUICK, "--out", first)[0] == 0
    words = ["--config", first / "config.yaml", "--method", "gaussian", "--out", tmp_path / "second", "lr=0.001"]
    assert run("train", f"folder:{photos}", *words)[0] == 0
    made = (tmp_path / "second" / "config.yaml").read_text()
    assert "method: gaussian" in made and "backbone: tiny" in made and "crop: 32" in made and "lr: 0.001" in made


def test_resuming_with_something_else_is_refused(tmp_path: Path, photos: Path, run: Run) -> None:
    folder = tmp_path / "run"
    assert run("train", f"folder:{photos}", *QUICK, "--out", folder)[0] == 0
    for words, names in ((["--method", "gaussian"], ("method=hd-papm", "gaussian")), (["steps=9"], ("steps=1", "9"))):
        code, _, err = run("train", f"folder:{photos}", "--out", folder, "--resume", *words)
        one_sentence(code, err, *names)
    assert run("train", f"folder:{photos}", "--out", folder, "--resume")[0] == 0


def test_a_diverging_run_says_what_to_do(tmp_path: Path, photos: Path, run: Run) -> None:
    words = ["--backbone", "tiny", "crop=32", "batch=1", "device=cpu", "steps=20", "lr=1e6", "clip=0", "warmup=0"]
    code, _, err = run("train", f"folder:{photos}", *words, "eval_every=1", "--out", tmp_path / "run")
    said, _, rest = err.partition("Images: 5 to train on, 1 to test on.\n")
    assert said == "select=last: too few images to choose weights by\n"
    one_sentence(code, rest, "smaller lr")


def test_places_that_cannot_be_written(tmp_path: Path, photos: Path, run: Run) -> None:
    (tmp_path / "file").write_text("x")
    code, _, err = run("train", f"folder:{photos}", *QUICK, "--out", tmp_path / "file" / "run")
    one_sentence(code, err, "file")


def test_predict_looks_no_deeper_and_says_so(tmp_path: Path, photos: Path, model: Path, run: Run) -> None:
    code, _, err = run("predict", model, photos.parent, "--out", tmp_path / "results")
    one_sentence(code, err, "sub-folders")


def test_images_in_a_folder_of_another_name(tmp_path: Path, photos: Path, run: Run) -> None:
    (tmp_path / "mine").mkdir()
    photos.rename(tmp_path / "mine/pictures")
    code, _, err = run("data", "check", tmp_path / "mine")
    assert code == 2 and err.endswith(f"where they belong; {tmp_path / 'mine/pictures'} has some\n")


def test_train_warns_of_what_takes_days_and_of_a_choice_by_chance(tmp_path: Path, photos: Path, run: Run) -> None:
    from papm.cli.advice import before_training
    from papm.config import TrainConfig

    slow, empty = before_training(TrainConfig(data="x", backbone="vgg19", device="cpu"))
    assert "--backbone tiny" in slow and "--weights imagenet" in empty
    [slow] = before_training(TrainConfig(data="x", backbone="p2pnet", device="cpu", weights="imagenet"))
    assert "network.trunk=tiny" in slow
    assert not before_training(TrainConfig(data="x", backbone="p2pnet", device="cpu", network={"trunk": "tiny"}))
    code, out, err = run("train", photos, "--out", tmp_path / "my run", *QUICK, "select=val")
    assert code == 0 and "mostly chance" in err and f"papm predict '{tmp_path / 'my run'}'" in out
    code, _, err = run("train", photos, "--out", tmp_path / "b", *QUICK, "select=last")
    assert code == 0 and "chance" not in err


def test_an_annotation_file_is_no_dataset(tmp_path: Path, run: Run) -> None:
    (tmp_path / "annotations.xml").write_text("<annotations></annotations>")
    code, _, err = run("data", "check", tmp_path / "annotations.xml")
    one_sentence(code, err, "annotations.xml", "give the folder")


def test_advice_does_not_come_before_a_refusal(tmp_path: Path, run: Run) -> None:
    """The large default network has advice on a CPU; a wrong path has one sentence."""
    code, _, err = run("train", tmp_path / "nowhere", "device=cpu", "--out", tmp_path / "run")
    one_sentence(code, err, "nowhere")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_what_a_missing_gpu_is_answered_with_works(tmp_path: Path, photos: Path, model: Path, run: Run) -> None:
    words = ["predict", model, photos / "1.jpg", "--out", tmp_path / "results"]
    for wrong in ("cuda", "cuda:1"):
        code, _, err = run(*words, "--device", wrong)
        one_sentence(code, err, "no CUDA device", "use --device cpu")
    for wrong in ("mps", "xpu", "meta", "gpu", ""):
        code, _, err = run(*words, "--device", wrong)
        one_sentence(code, err, f"'{wrong}' is no device of this machine", "auto, cpu or cuda")
    assert run(*words, "--device", "cpu")[0] == 0


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"features.0.weight": Path("x")}))


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


def shortened(path: Path) -> None:
    torch.save({"features.0.weight": torch.zeros(64, 3, 3, 3)}, path)
    path.write_bytes(path.read_bytes()[:2000])


NOT_WEIGHTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (Path.touch, "it is empty"),
    "text": (lambda p: p.write_text("hello world, these are notes"), "it is a text file"),
    "page": (lambda p: p.write_text("\n<!DOCTYPE html><title>404</title>"), "it is a web page"),
    "pointer": (lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\noid x\n"), "Git LFS"),
    "noise": (lambda p: p.write_bytes(np.random.default_rng(0).bytes(3000)), "it is damaged, or something else"),
    "pickle": (pickled, "it holds Python objects other than tensors"),
    "objects": (lambda p: torch.save({"a": Path("x")}, p), "it holds Python objects other than tensors"),
    "zip": (zipped, "it is a zip archive of something else"),
    "cut": (shortened, "it is cut off or damaged"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NOT_WEIGHTS)
def test_why_a_file_is_no_weights(tmp_path: Path, photos: Path, run: Run, kind: str) -> None:
    """In words of ours: torch speaks of its own options, in paragraphs."""
    make, reason = NOT_WEIGHTS[kind]
    file = tmp_path / "given.pth"
    make(file)
    vgg = ["--backbone", "vgg19", "steps=1", "crop=32", "batch=1", "device=cpu", "--out", tmp_path / "run"]
    for words in (
        ["train", photos, *vgg, "--weights", file],
        ["train", photos, *QUICK, "--out", tmp_path / "run", "--init", file],
        ["predict", file, photos / "1.jpg", "--out", tmp_path / "run"],
        ["export", file, "--out", tmp_path / "run" / "m.onnx"],
    ):
        code, _, err = run(*words)
        one_sentence(code, err, "given.pth", reason)
        assert "orch" not in err.replace(str(tmp_path), "")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_is_no_weights_of_a_trunk(tmp_path: Path, photos: Path, model: Path, run: Run) -> None:
    vgg = ["--backbone", "vgg19", "steps=1", "crop=32", "batch=1", "device=cpu", "--out", tmp_path / "run"]
    code, _, err = run("train", photos, *vgg, "--weights", model)
    one_sentence(code, err, "tiny.ckpt", "is a papm checkpoint", "--init")


def test_a_folder_without_images_is_told_so(tmp_path: Path, model: Path, run: Run) -> None:
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    for inside in ((), ("sub/notes.txt",)):
        for name in inside:
            (tmp_path / "empty" / name).write_text("1 2\n")
        for words in (
            ["data", "info", tmp_path / "empty"],
            ["data", "check", tmp_path / "empty"],
            ["train", tmp_path / "empty", *QUICK, "--out", tmp_path / "run"],
            ["eval", model, tmp_path / "empty"],
            ["predict", model, tmp_path / "empty", "--out", tmp_path / "run"],
        ):
            code, _, err = run(*words)
            one_sentence(code, err, f"{tmp_path / 'empty'}: there are no images in this folder")


def altered(model: Path, path: Path, *keys: str, to: object) -> Path:
    """A checkpoint with one thing of it changed."""
    values = torch.load(model, weights_only=True)
    place = values
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = to
    torch.save(values, path)
    return path


@pytest.mark.parametrize(
    ("keys", "to", "says"),
    [
        (("papm", "config", "options", "min_side"), 20_000, "min_side"),
        (("papm", "config", "options", "min_side"), 100_000, "min_side"),
        (("papm", "options", "num_classes"), 10**9, "num_classes"),
        (("papm", "step"), float("inf"), "not a whole papm checkpoint"),
        (("papm", "format"), 99, "newer papm"),
        (("papm", "format"), "x", "its format is 'x'"),
        (("state_dict", "network.output.weight"), torch.empty(1, 32, 1, 1, device="meta"), "without values"),
        (("state_dict", "network.output.weight"), torch.zeros(1, 32, 1, 1).to_sparse(), "sparse"),
        (("state_dict", "network.output.weight"), torch.ones(1, 32, 1, 1).bool(), "torch.bool"),
    ],
)
def test_predict_refuses_altered_checkpoints(
    tmp_path: Path, photos: Path, model: Path, run: Run, keys: tuple[str, ...], to: object, says: str
) -> None:
    path = altered(model, tmp_path / "altered.ckpt", *keys, to=to)
    if says == "newer papm":
        altered(path, path, "papm", "version", to="x" * 10**6)
    code, _, err = run("predict", path, photos / "1.jpg", "--out", tmp_path / "results", "--device", "cpu")
    one_sentence(code, err, "altered.ckpt", says)
    assert len(err) < len(str(path)) + 300 and not (tmp_path / "results").exists()


def test_predict_enlarges_no_image_beyond_the_limit(tmp_path: Path, model: Path, run: Run) -> None:
    Image.new("RGB", (4000, 2)).save(tmp_path / "strip.png")
    path = altered(model, tmp_path / "altered.ckpt", "papm", "config", "options", "min_side", to=4096)
    code, _, err = run("predict", path, tmp_path / "strip.png", "--out", tmp_path / "results", "--device", "cpu")
    one_sentence(code, err, "strip.png", "would be enlarged to 8192000×4096")
