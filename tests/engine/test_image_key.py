"""What tells an image from others."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import torch
from PIL import Image

from papm.engine.image_key import content_key, file_key, key
from papm.structures import Sample


def flat(path: Path, column: int) -> Path:
    """A white image with a dark object in the middle rows."""
    image = Image.new("RGB", (400, 400), "white")
    image.paste((0, 0, 0), (column, 190, column + 9, 210))
    image.save(path)
    return path


def test_images_that_differ_in_their_middle_only_have_keys_of_their_own(tmp_path: Path) -> None:
    for ending in ("bmp", "tif"):  # without compression: of one length, and alike nearly everywhere
        files = [flat(tmp_path / f"{column}.{ending}", column) for column in (50, 51, 300)]
        assert len({f.stat().st_size for f in files}) == 1 and len({file_key(f) for f in files}) == 3


def test_a_file_and_its_content_have_one_key_which_calibrated_models_hold(tmp_path: Path) -> None:
    path = flat(tmp_path / "a.bmp", 50)
    sample = Sample("a", path, torch.ones(1, 2), (400, 400))
    shown = dataclasses.replace(sample, source=lambda: torch.zeros(3, 4, 4), size=(4, 4), original=sample)
    stored = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    assert {key(sample), key(shown), file_key(path), content_key(path.read_bytes())} == {stored}


def test_a_drawn_scene_is_told_by_name_size_and_points() -> None:
    drawn = Sample("a", lambda: torch.zeros(3, 8, 8), torch.ones(2, 2), (8, 8))
    others = [{"name": "b"}, {"name": "\udcff"}, {"size": (8, 9)}, {"points": torch.zeros(2, 2)}]
    assert len({key(drawn), *(key(dataclasses.replace(drawn, **other)) for other in others)}) == 5
    assert key(drawn) == content_key(b"a (8, 8) [[1.0, 1.0], [1.0, 1.0]]")
