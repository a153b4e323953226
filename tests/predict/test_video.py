"""Videos: the frames that are read, at which seconds, and those that are written."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from papm.errors import ConfigError, DataError, WriteError
from papm.predict.video import Video, VideoWriter, is_video_name, opencv, playing_rate

pytest.importorskip("cv2")


def grey(level: int, h: int = 48, w: int = 64) -> Tensor:
    return torch.full((3, h, w), level, dtype=torch.uint8)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds, ten frames in each, lighter and lighter."""
    path = tmp_path_factory.mktemp("video") / "clip.webm"
    with VideoWriter(path, 10.0) as writer:
        for k in range(30):
            writer.write(grey(40 + 6 * k))
    return path


def test_frames_come_in_order_with_their_seconds(clip: Path) -> None:
    with Video(clip) as video:
        assert (video.size, video.rate, video.frames, video.expected()) == ((48, 64), 10.0, 30, 30)
        found = list(video.read())
    assert [f.number for f in found] == list(range(30)) and video.frames_read == 30
    assert [f.seconds for f in found] == pytest.approx([k / 10 for k in range(30)], abs=2e-3)
    assert all(f.image.shape == (3, 48, 64) and f.image.dtype == torch.uint8 for f in found)
    levels = [float(f.image.float().mean()) for f in found]
    assert all(a < b for a, b in itertools.pairwise(levels)) and levels[0] < 60 and levels[-1] > 180


def test_colours_are_red_green_and_blue(tmp_path: Path) -> None:
    image = grey(30)
    image[0] = 220
    with VideoWriter(tmp_path / "red.webm", 4.0) as writer:
        writer.write(image)
    (found,) = Video(tmp_path / "red.webm").read()
    red, green, blue = found.image.float().mean((1, 2)).tolist()
    assert red > 180 and green < 80 and blue < 80


@pytest.mark.parametrize(("every", "numbers"), [(1.0, [0, 10, 20]), (0.5, [0, 5, 10, 15, 20, 25]), (9.0, [0])])
def test_one_frame_every_so_many_seconds(clip: Path, every: float, numbers: list[int]) -> None:
    with Video(clip) as video:
        assert [f.number for f in video.read(every)] == numbers and video.expected(every) == len(numbers)


@pytest.mark.parametrize("every", [0.05, 0.001, 1e-320])
def test_there_are_no_more_frames_than_the_file_has(clip: Path, every: float) -> None:
    with Video(clip) as video:
        assert len(list(video.read(every))) == video.expected(every) == 30


def test_times_between_frames_take_the_nearest(clip: Path) -> None:
    with Video(clip) as video:
        assert [f.number for f in video.read(0.32)] == [0, 3, 6, 10, 13, 16, 19, 22, 26, 29]


@pytest.mark.parametrize("stamps", [[0.0] * 6, [0.0, 200.0, 100.0, 50.0, 0.0, 0.0]])
def test_a_file_without_usable_time_stamps_goes_by_its_rate(clip: Path, stamps: list[float]) -> None:
    import cv2

    class Capture:
        """Six frames at five a second, with stamps of their own."""

        at = -1

        def grab(self) -> bool:
            self.at += 1
            return self.at < len(stamps)

        def get(self, key: int) -> float:
            return stamps[self.at] if key == cv2.CAP_PROP_POS_MSEC else 0.0

        def retrieve(self) -> tuple[bool, Any]:
            return True, grey(9).permute(1, 2, 0).numpy()

        def release(self) -> None:
            pass

    video = Video(clip)
    video._capture, video.rate = Capture(), 5.0
    found = [f.seconds for f in video.read()]
    assert found == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])


def test_odd_sides_lose_a_pixel_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "deep" / "odd.webm", 4.0) as writer:
        writer.write(grey(100, 49, 65))
        assert not (tmp_path / "deep" / "odd.webm").exists()  # not before it is whole
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["odd.webm"]
    assert Video(tmp_path / "deep" / "odd.webm").size == (48, 64)
    with VideoWriter(tmp_path / "none.webm", 4.0):
        pass
    assert not (tmp_path / "none.webm").exists()
    with pytest.raises(WriteError, match="too small for a video"):
        VideoWriter(tmp_path / "dot.webm", 4.0).write(grey(1, 1, 1))


def test_frames_of_another_size_are_cut_or_filled_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with VideoWriter(tmp_path / "a.webm", 4.0) as writer:
        for side in (48, 24, 96):
            writer.write(grey(200, side, side))
    with Video(tmp_path / "a.webm") as video:
        levels = [float(f.image.float().mean()) for f in video.read()]
    assert video.size == (48, 48) and levels == pytest.approx([200, 50, 200], abs=8) and capfd.readouterr().err == ""


def test_what_cannot_be_written_is_said_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "a.webm").mkdir()
    writer = VideoWriter(tmp_path / "a.webm", 4.0)
    writer.write(grey(9))
    with pytest.raises(WriteError, match=r"/a\.webm: cannot be written"):
        writer.close()
    assert [p.name for p in tmp_path.iterdir()] == ["a.webm"]


@pytest.mark.skipif(sys.platform != "linux", reason="names are text here")
def test_a_name_that_is_no_text_is_said(tmp_path: Path, clip: Path) -> None:
    path = tmp_path / "gate\udcff.webm"  # OpenCV crashes on it
    shutil.copy(clip, path)
    with pytest.raises(DataError, match="names in UTF-8"):
        Video(path)
    with pytest.raises(DataError, match="names in UTF-8"):
        VideoWriter(path, 4.0).write(grey(9))


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"no video" * 100)
    with pytest.raises(DataError, match=r"bad\.mp4: cannot be read as a video"):
        Video(tmp_path / "bad.mp4")
    with pytest.raises(DataError, match="no such video"):
        Video(tmp_path / "none.mp4")
    monkeypatch.setenv("PAPM_MAX_PIXELS", "1000")
    with pytest.raises(DataError, match="frames of 64×48 pixels; the limit is 1,000"):
        Video(clip)
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ConfigError, match=r"opencv-python-headless': pip install 'papm\[video\]'"):
        opencv()


LISTS = {
    "ffconcat": "ffconcat version 1.0\nfile clip.webm\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nclip.webm\n#EXT-X-ENDLIST\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("given", ["", "protocol_whitelist;file,rtp,udp|format_whitelist;concat,hls,sdp,matroska"])
def test_a_list_of_other_files_is_no_video(
    tmp_path: Path, clip: Path, kind: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg would open the file beside it."""
    monkeypatch.setenv("OPENCV_FFMPEG_CAPTURE_OPTIONS", given)
    shutil.copy(clip, tmp_path / "clip.webm")
    (tmp_path / "list.mp4").write_text(LISTS[kind])
    with pytest.raises(DataError, match=r"list\.mp4: cannot be read as a video"):
        Video(tmp_path / "list.mp4")
    with Video(tmp_path / "clip.webm") as video:
        assert video.frames == 30


@pytest.mark.parametrize(
    ("suffix", "code"),
    [
        *((s, "mp4v") for s in (".mp4", ".m4v", ".mov", ".3gp")),
        *((".avi", c) for c in ("MJPG", "mp4v")),
        (".mkv", "VP80"), (".webm", "VP80"), (".mpeg", "mpg2"), (".mpg", "mpg2"), (".wmv", "WMV2"), (".mts", "mpg2"),
        (".m2ts", "mpg2"),
    ],
)  # fmt: skip
def test_every_container_is_read(tmp_path: Path, suffix: str, code: str) -> None:
    cv2 = opencv()
    path = tmp_path / f"a{suffix}"
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*code), 25.0, (64, 48))
    if not writer.isOpened():
        pytest.skip("this OpenCV does not write it")
    for level in range(40, 200, 20):
        writer.write(grey(level).permute(1, 2, 0).numpy())
    writer.release()
    with Video(path) as video:
        assert len(list(video.read())) == 8


def test_the_library_keeps_quiet(tmp_path: Path, clip: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.avi").write_bytes(b"RIFF" + bytes(400))
    with pytest.raises(DataError):
        Video(tmp_path / "bad.avi")
    with VideoWriter(tmp_path / "a.webm", 4.0) as writer:
        writer.write(grey(1))
    assert capfd.readouterr() == ("", "")


def test_nobody_needs_to_listen(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: int) -> int:
        raise OSError("Bad file descriptor")

    monkeypatch.setattr("papm.predict.video.os.dup", closed)  # as after 2>&-
    with Video(clip) as video:
        assert video.frames == 30


def test_what_was_counted_is_shown_as_fast_as_it_passed_or_faster(clip: Path) -> None:
    with Video(clip) as video:
        assert [playing_rate(video, every) for every in (0.0, 0.2, 1.0, 60.0, 0.001)] == [10.0, 5.0, 4.0, 4.0, 10.0]


def test_names() -> None:
    assert is_video_name("a.MOV") and not is_video_name("a.mov.jpg") and not is_video_name("mp4")
