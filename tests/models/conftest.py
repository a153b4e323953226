"""Every network in the slow lane, the small ones in the fast lane; and published weights, where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

OF_EVERY_NETWORK = (
    "test_shape_sign_and_dtype",
    "test_gradients_reach_every_parameter",
    "test_a_batch_of_no_images_gives_a_batch_of_no_outputs",
    "test_two_steps_lower_the_loss",
    "test_what_was_learned_is_what_is_loaded",
    "test_every_size_has_a_count",
    "test_one_pixel_can_be_learned_from",
    "test_the_receptive_field_bounds_what_a_cell_sees",
    "test_images_of_a_batch_do_not_mix",
    "test_a_long_thin_image",
    "test_counts_of_odd_sizes_in_half_precision",
    "test_precisions_agree_and_end_in_float32",
    "test_what_is_not_local_sees_the_far_end",
    "test_padding_is_the_mirror_image_and_not_counted",
    "test_moving_the_image_moves_the_map",
    "test_channels_last_gives_the_same",
    "test_the_table_tells_the_truth",
)
SMALL = ("tiny", "lite")
LARGE = ("test_csrnet.py", "test_man.py", "test_msfanet.py")  # files of large networks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        function, _, case = item.name.partition("[")
        large = function in OF_EVERY_NETWORK and not any(name in case.rstrip("]").split("-") for name in SMALL)
        if large or item.path.name in LARGE:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def real() -> Callable[[str], Path]:
    """The file whose name begins so, of the folder PAPM_WEIGHTS; tests that ask for it skip when it is absent."""

    def find(arch: str) -> Path:
        folder = os.environ.get("PAPM_WEIGHTS")
        files = sorted(Path(folder).glob(f"{arch}[_.-]*.safetensors")) if folder else []
        if not files:
            pytest.skip(f"set PAPM_WEIGHTS to a folder with {arch} weights")
        return files[0]

    return find
