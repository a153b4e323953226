"""Tables of ImageJ, one an image or one for all, and pixels as they are stored before EXIF turns a photograph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import papm.data
from papm.data.check import check
from papm.data.convert import write_folder
from papm.errors import ConfigError, DataError
from papm.structures import Sample

W, H = 120, 80
MEASURED = """ ,Area,Mean,Min,Max,X,Y,Ch,Counter,Count
1,0,121,121,121,12.5,40.0,1,0,2
2,0,98,98,98,103,8.25,1,3,2
"""
# A dot at (30, 20) of the upright image, and where it is in the stored pixels; how Pillow turns upright pixels into those.
STORED = {
    3: ((W - 30, H - 20), Image.Transpose.ROTATE_180),
    6: ((20, W - 30), Image.Transpose.ROTATE_90),
    8: ((H - 20, 30), Image.Transpose.ROTATE_270),
}


def image(path: Path, how: int = 1) -> Path:
    """A photograph with a white spot at (30, 20) of the upright image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.new("RGB", (W, H), (40, 60, 30))
    picture.paste((255, 255, 255), (27, 17, 33, 23))
    tag = Image.Exif()
    tag[274] = how
    if how != 1:
        picture = picture.transpose(STORED[how][1])
    picture.save(path, exif=tag, quality=95) if path.suffix.lower() == ".jpg" else picture.save(path)
    return path


def put(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def opened(root: Path, **options: Any) -> dict[str, Sample]:
    data = papm.data.open("folder", root, **options) if options else papm.data.open_spec(str(root))
    return {s.name: s for d in data.values() for s in d}


def is_white(sample: Sample) -> bool:
    """Whether every point is on a white spot."""
    x, y = sample.points.long().unbind(-1)
    return bool((sample.image[:, y, x] > 200).all())


@pytest.mark.parametrize("name", ["Plot 1.csv", "Plot 1.png.csv", "points/Plot 1.tsv", "Plot 1.txt"])
def test_measured_points_of_one_image(tmp_path: Path, name: str) -> None:
    """As ImageJ saves its results: a number without a heading first, X and Y among other columns."""
    image(tmp_path / "Plot 1.png")
    put(tmp_path / name, MEASURED if name.endswith(".csv") else MEASURED.replace(",", "\t"))
    (sample,) = opened(tmp_path).values()
    assert sample.points.tolist() == [[12.5, 40.0], [103.0, 8.25]]
    assert sample.labels is not None and sample.labels.tolist() == [0, 3]  # the counters of the multi-point tool
    assert papm.data.open_spec(str(tmp_path))["all"].file_format == "imagej"


def test_images_without_objects_and_without_tables(tmp_path: Path) -> None:
    for name in "abc":
        image(tmp_path / f"{name}.png")
    put(tmp_path / "a.csv", " ,X,Y\n1,5,6\n")
    put(tmp_path / "b.csv", " ,X,Y\n")
    with pytest.raises(DataError, match=r"c\.png: no annotation file; expected .*c\.csv \(an empty file there says"):
        opened(tmp_path)
    put(tmp_path / "c.csv", "")
    assert [s.count for s in opened(tmp_path).values()] == [1, 0, 0]


def test_a_table_of_features_does_not_take_the_place_of_the_dots(tmp_path: Path) -> None:
    """Points that were read before there was this format are read as before, or the user is asked."""
    for name in "ab":
        image(tmp_path / f"{name}.png")
        put(tmp_path / f"{name}.csv", "x,y,score\n1,2,0.5\n")
        put(tmp_path / f"{name}.txt", "30 40\n")
    put(tmp_path / "Results.csv", " ,Label,Area,X,Y\n1,foo,0,1,2\n")  # left over from something else
    assert [s.points.tolist() for s in opened(tmp_path).values()] == [[[30, 40]], [[30, 40]]]
    for name in "ab":
        (tmp_path / f"{name}.txt").unlink()
        put(tmp_path / f"{name}.json", '{"points": [[3, 4]]}')
    with pytest.raises(DataError, match="several formats"):
        opened(tmp_path)


def test_a_label_that_is_no_image_is_a_class_unless_imagej_measured(tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    put(tmp_path / "a.csv", ",X,Y,Label\n0,1,2,cat\n1,3,4,dog\n")  # as pandas writes it
    (sample,) = opened(tmp_path).values()
    assert sample.labels is not None and sample.labels.tolist() == [0, 1]
    put(tmp_path / "a.csv", " ,Label,Area,X,Y\n1,Untitled,0,1,2\n")
    (sample,) = opened(tmp_path).values()
    assert sample.labels is None and sample.points.tolist() == [[1, 2]]


@pytest.mark.parametrize("suffix", [".jpg", ".tif", ".png", ".webp"])
def test_files_of_every_kind_are_turned(tmp_path: Path, suffix: str) -> None:
    picture = Image.new("RGB", (60, 40))
    picture.paste((255, 255, 255), (9, 4, 15, 10))
    tag = Image.Exif()
    tag[274] = 6
    picture.save(tmp_path / f"a{suffix}", exif=tag)
    put(tmp_path / "a.csv", " ,X,Y\n1,12,7\n")
    (sample,) = opened(tmp_path).values()
    assert sample.size == (60, 40) and sample.points.tolist() == [[33, 12]] and is_white(sample)


def test_tables_of_a_spreadsheet_and_of_saved_points(tmp_path: Path) -> None:
    """Any table of one image with x and y: decimal commas with semicolons or tabs, classes by name."""
    for name in "abc":
        image(tmp_path / f"{name}.png")
    put(tmp_path / "a.csv", "nr;x;y\n1;12,5;40\n")
    put(tmp_path / "b.tsv", "x\ty\tclass\tname\tcolor\n1.5\t2\tPositive\t\t-1\n3\t4\tNegative\t\t-2\n")
    put(tmp_path / "c.tsv", "y\tx\tclass\n7,5\t8\tPositive\n")
    found = opened(tmp_path)
    assert found["a"].points.tolist() == [[12.5, 40]] and found["c"].points.tolist() == [[8, 7.5]]
    assert [found["b"].meta["classes"][i] for i in torch.as_tensor(found["b"].labels).tolist()] == [
        "Positive",
        "Negative",
    ]


def test_one_table_for_all_images(tmp_path: Path) -> None:
    """With "Display label" the image is in the column Label, the name of a selection after it."""
    for name in ("a 1", "b", "c"):
        image(tmp_path / "images" / f"{name}.png")
    rows = "1,a 1.png,0,5,5,5,1.5,2.5\n2,a 1.png:0003-0012,0,5,5,5,10,20\n3,b.png,0,5,5,5,3,4\n"
    put(tmp_path / "Results.csv", f" ,Label,Area,Mean,Min,Max,X,Y\n{rows}")
    found = opened(tmp_path)
    assert found["a 1"].points.tolist() == [[1.5, 2.5], [10, 20]]
    assert found["b"].points.tolist() == [[3, 4]] and found["c"].count == 0
    assert found["b"].labels is None


def test_numbered_rows_of_other_programs_are_no_labels_of_imagej(tmp_path: Path) -> None:
    """A table that pandas wrote with its index, one for all images and one an image."""
    image(tmp_path / "one/a.png")
    put(tmp_path / "one/points.csv", ",image,x,y,label\n0,a.png,1,2,7\n")
    image(tmp_path / "each/a.png")
    put(tmp_path / "each/a.csv", ",x,y,label\n0,1,2,7\n")
    for root in ("one", "each"):
        (sample,) = opened(tmp_path / root).values()
        assert sample.points.tolist() == [[1, 2]] and torch.as_tensor(sample.labels).tolist() == [7]


@pytest.mark.parametrize("sep", [",", ";", "\t"])
def test_rows_with_a_number_that_the_header_does_not_name_are_refused(tmp_path: Path, sep: str) -> None:
    """As R writes tables: read from the left, the number would be x, and x would be y."""
    image(tmp_path / "a.png")
    rows = '"3",12.5,30\n"7",4.25,8\n'.replace(",", sep)
    put(tmp_path / "a.csv", f'"x"{sep}"y"\n{rows}')
    with pytest.raises(
        DataError, match=r"a\.csv:2: 3 fields where the header has 2; if the first is the number of the row"
    ):
        opened(tmp_path)
    scored = "x,y\n12.5,30,7\n4.25,8,9\n".replace(",", sep)
    for content in (f'""{sep}"x"{sep}"y"\n{rows}', scored):
        put(tmp_path / "a.csv", content)
        assert opened(tmp_path)["a"].points.tolist() == [[12.5, 30], [4.25, 8]]


def test_results_that_were_not_cleared(tmp_path: Path) -> None:
    """ImageJ appends: the table of the second image begins with the points of the first."""
    image(tmp_path / "a.png")
    put(tmp_path / "a.csv", " ,Label,X,Y\n1,z.png,5,6\n2,a.png,7,8\n")
    with pytest.raises(DataError, match=r"a\.csv:3: 'a\.png' was measured here, 'z\.png' above: clear the results"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" ,X,Y\n1,5\n", "a.csv:2: expected X and Y, found 2 fields"),
        (" ,X,Y\n1,5,6\n2,five,6\n", "a.csv:3: x is 'five', not a number"),
        (" ,Area,XM\n1,5,6\n", "a.csv:1: expected a header with the columns X and Y; found: , Area, XM"),
    ],
)
def test_faults_name_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    image(tmp_path / "a.png")
    put(tmp_path / "a.csv", text)
    with pytest.raises(DataError) as e:
        opened(tmp_path, format="imagej")
    assert words in str(e.value)


def test_other_tables_beside_are_left_aside_and_lost_ones_are_named(tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    put(tmp_path / "a.csv", MEASURED)
    put(tmp_path / "Summary.csv", "Slice,Count,Total Area\na.png,2,0\n")
    put(tmp_path / "gone.csv", MEASURED)
    said = {f.file.name: (f.severity, f.message) for f in check("folder", tmp_path) if f.file}
    assert said["Summary.csv"] == ("info", "not an annotation; left aside")
    assert said["gone.csv"] == ("error", "an annotation whose image is missing")


# --- stored pixels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", STORED)
def test_tools_that_pass_over_exif_mark_the_stored_pixels(how: int, tmp_path: Path) -> None:
    (x, y), _ = STORED[how]
    made = {
        "each": (f" ,X,Y\n1,{x},{y}\n", "a.csv"),
        "one": (f" ,Label,X,Y\n1,a.jpg,{x},{y}\n", "Results.csv"),
        "geo": (json.dumps({"type": "Feature", "geometry": {"type": "Point", "coordinates": [x, y]}}), "a.geojson"),
    }
    for root, (text, name) in made.items():
        image(tmp_path / root / "a.jpg", how)
        put(tmp_path / root / name, text)
        sample = opened(tmp_path / root)["a"]
        assert sample.points.tolist() == [[30, 20]] and is_white(sample)
        assert not [f for f in check("folder", tmp_path / root) if f.severity == "error"]
    image(tmp_path / "txt/a.jpg", how)
    put(tmp_path / "txt/a.txt", f"{x} {y}\n")
    assert opened(tmp_path / "txt")["a"].points.tolist() == [[x, y]]  # text is taken as upright, unless told
    assert is_white(opened(tmp_path / "txt", stored=True)["a"])
    assert opened(tmp_path / "each", stored=False)["a"].points.tolist() == [[x, y]]


@pytest.mark.parametrize("format", ["imagej", "qupath", "txt"])
@pytest.mark.parametrize("how", STORED)
def test_points_are_written_where_the_tool_shows_them(format: str, how: int, tmp_path: Path) -> None:
    sample = Sample("a", image(tmp_path / "a.jpg", how), torch.tensor([[30.0, 20.0]]), (H, W))
    write_folder([sample], tmp_path / "o", to=format)
    assert opened(tmp_path / "o")["a"].points.tolist() == [[30, 20]]
    text = next(p for p in (tmp_path / "o/images").iterdir() if p.suffix != ".jpg").read_text()
    (x, y), _ = STORED[how]
    assert (f"{x}" in text and f"{y}" in text) == (format != "txt")


def test_check_says_that_points_may_be_of_the_stored_pixels(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg", 6)
    put(tmp_path / "a.txt", "".join(f"20 {y}\n" for y in range(10, 120, 10)))  # upright it is 120 × 80
    said = [f.message for f in check("folder", tmp_path)]
    assert any("as it is stored, before EXIF turns it" in m and "stored=true" in m for m in said)
    assert not any("columns swapped" in m for m in said)
    assert not [f for f in check("folder", tmp_path, stored=True) if f.severity == "error"]
    with pytest.raises(ConfigError, match="stored of dataset 'folder' is true or false, not 'maybe'"):
        papm.data.open("folder", tmp_path, stored="maybe")


def test_files_that_no_format_fits_are_named(tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    put(tmp_path / "a.points", "Iout")
    put(tmp_path / "b.points", "Iout")
    with pytest.raises(
        DataError, match=r"images but no points that papm can read \(a\.points and 1 more: .*papm data list"
    ):
        papm.data.open("folder", tmp_path)


# --- Cell Counter ------------------------------------------------------------------------------------------------------

MARKERS = """<?xml version="1.0" encoding="UTF-8"?>
<CellCounter_Marker_File>
 <Image_Properties>
     <Image_Filename>a.png</Image_Filename>
 </Image_Properties>
 <Marker_Data>
     <Current_Type>2</Current_Type>
     <Marker_Type>
         <Type>1</Type>
         <Marker>
             <MarkerX>12</MarkerX>
             <MarkerY>40</MarkerY>
             <MarkerZ>1</MarkerZ>
         </Marker>
         <Marker>
             <MarkerX>0</MarkerX>
             <MarkerY>7</MarkerY>
             <MarkerZ>1</MarkerZ>
         </Marker>
     </Marker_Type>
     <Marker_Type>
         <Type>2</Type>{name}
         <Marker>
             <MarkerX>50</MarkerX>
             <MarkerY>60</MarkerY>
             <MarkerZ>{z}</MarkerZ>
         </Marker>
     </Marker_Type>
     <Marker_Type>
         <Type>3</Type>
     </Marker_Type>
 </Marker_Data>
</CellCounter_Marker_File>
"""


@pytest.mark.parametrize("place", ["CellCounter_a.xml", "CellCounter_a.png.xml", "annotations/CellCounter_a.xml"])
def test_markers_of_cell_counter(tmp_path: Path, place: str) -> None:
    image(tmp_path / "a.png")
    put(tmp_path / place, MARKERS.format(name="", z=1))
    (sample,) = opened(tmp_path).values()
    assert sample.points.tolist() == [[12.5, 40.5], [0.5, 7.5], [50.5, 60.5]]
    assert sample.meta["classes"] == ("Type 1", "Type 2") and torch.as_tensor(sample.labels).tolist() == [0, 0, 1]
    assert opened(tmp_path, category="Type 2")["a"].count == 1
    put(tmp_path / place, MARKERS.format(name="<Name>dead</Name>", z=1))
    assert opened(tmp_path)["a"].meta["classes"] == ("Type 1", "dead")


def test_markers_on_other_pictures_of_a_stack_are_refused(tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    put(tmp_path / "CellCounter_a.xml", MARKERS.format(name="", z=2))
    with pytest.raises(DataError, match=r"CellCounter_a\.xml:23: this marker lies on picture 2 of a stack"):
        opened(tmp_path)


def test_markers_are_written_as_whole_pixels(tmp_path: Path) -> None:
    """The plugin reads nothing else."""
    sample = Sample("a", lambda: torch.zeros(3, H, W, dtype=torch.uint8), torch.tensor([[30.9, 20.0]]), (H, W))
    write_folder([sample], tmp_path / "o", to="cellcounter")
    text = (tmp_path / "o/images/CellCounter_a.xml").read_text()
    assert "<MarkerX>30</MarkerX><MarkerY>20</MarkerY><MarkerZ>1</MarkerZ>" in text and "<Type>1</Type>" in text
