"""Mutations of a file: what disks, editors, other programs and people with bad intentions do to it.

`mutate(rng, data, suffix)` gives words for what was done, and the new bytes. Which kinds are tried depends on what the file
holds: bytes, text, JSON, XML or YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

Made = tuple[str, bytes]
Mutation = Callable[[Random, bytes], Made]
TEXT = {".txt", ".csv", ".tsv", ".pnt", ".json", ".geojson", ".xml", ".yaml", ".yml"}
MOST = 4_000_000  # bytes of a mutation, except where growing is the point

NUMBERS = (
    *("nan", "inf", "-inf", "1e999", "-1e999", "1e308", "1e-320", "-0", "-1", "0", "1e30", "2147483648", "-2147483649"),
    *("99999999999999999999", "9" * 400, "0x10", "1_000", "1,5", "٣", "½", "1e", ".", "--1", "NaN", "None", "true"),
)
WORDS = (
    "",
    "null",
    "[]",
    "{}",
    '"',
    "'",
    "\\",
    "\x00",
    "../../x",
    "/etc/passwd",
    "%s",
    "{{7*7}}",
    "\ud7ff",
    "a" * 100_000,
)


# -- bytes -----------------------------------------------------------------------------------------------------------


def _part(rng: Random, data: bytes, most: int = 64) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randint(1, most))


def flip(rng: Random, data: bytes) -> Made:
    """One bit, or a few, are wrong."""
    made, places = bytearray(data), []
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        place = rng.randrange(len(made))
        made[place] ^= 1 << rng.randrange(8)
        places.append(place)
    return f"bits flipped in bytes {places}", bytes(made)


def truncate(rng: Random, data: bytes) -> Made:
    """The end is missing."""
    keep = rng.choice((rng.randrange(len(data)), len(data) - rng.randint(1, min(40, len(data)))))
    return f"cut to {keep} of {len(data)} bytes", data[:keep]


def delete(rng: Random, data: bytes) -> Made:
    """A part is missing."""
    start, stop = _part(rng, data)
    return f"bytes {start} to {stop} deleted", data[:start] + data[stop:]


def double(rng: Random, data: bytes) -> Made:
    """A part, or all of it, is there several times."""
    start, stop = _part(rng, data, rng.choice((16, 256, len(data))))
    times = rng.choice((2, 2, 3, 100))
    if (stop - start) * times > MOST:
        times = 2
    return f"bytes {start} to {stop} {times} times", data[:start] + data[start:stop] * times + data[stop:]


def overwrite(rng: Random, data: bytes) -> Made:
    """A length or an offset is huge, zero or negative."""
    word = rng.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4), bytes(64), b"\x00\x00\x01\x00"))
    start = rng.randrange(len(data))
    return f"bytes from {start} on are {word[:8].hex()}", data[:start] + word + data[start + len(word) :]


def noise(rng: Random, data: bytes) -> Made:
    """A part is something else."""
    start, stop = _part(rng, data, 200)
    return f"bytes {start} to {stop} are noise", data[:start] + rng.randbytes(stop - start) + data[stop:]


def nothing(rng: Random, data: bytes) -> Made:
    """Nothing, or only zeros, were written."""
    return ("emptied", b"") if rng.random() < 0.5 else ("all zeros", bytes(len(data)))


BYTES: tuple[Mutation, ...] = (flip, flip, truncate, truncate, delete, double, overwrite, noise, nothing)


# -- text ------------------------------------------------------------------------------------------------------------


def _swap_one(rng: Random, data: bytes, pattern: bytes, choices: tuple[str, ...]) -> Made:
    found = list(re.finditer(pattern, data))
    if not found:
        return flip(rng, data)
    one, word = rng.choice(found), rng.choice(choices)
    shown = word if len(word) < 40 else f"{word[:10]}… ({len(word)} characters)"
    return f"{one[0][:40]!r} at {one.start()} becomes {shown!r}", data[: one.start()] + word.encode() + data[
        one.end() :
    ]


def number(rng: Random, data: bytes) -> Made:
    """A number is another, or none."""
    return _swap_one(rng, data, rb"-?\d[\d.eE+-]*", NUMBERS)


def word(rng: Random, data: bytes) -> Made:
    """A word is another."""
    return _swap_one(rng, data, rb"[A-Za-z_]+", WORDS)


def line(rng: Random, data: bytes) -> Made:
    """Lines are missing, doubled, swapped or joined."""
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return delete(rng, data)
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    how = rng.choice(("missing", "doubled", "swapped", "joined"))
    if how == "missing":
        del lines[a]
    elif how == "doubled":
        lines.insert(b, lines[a])
    elif how == "swapped":
        lines[a], lines[b] = lines[b], lines[a]
    else:
        lines[a] = lines[a].rstrip(b"\r\n")
    return f"line {a + 1} {how}", b"".join(lines)


def encode(rng: Random, data: bytes) -> Made:
    """Saved by another program: byte order marks, other encodings, other line ends."""
    text = data.decode("utf-8", "replace")
    how = rng.choice(("utf-8-sig", "utf-16", "utf-32", "cp1252", "CR", "CRLF", "NUL", "no last line end"))
    if how in ("CR", "CRLF"):
        return how, text.replace("\n", "\r" if how == "CR" else "\r\n").encode()
    if how == "NUL":
        return how, data.replace(b" ", b"\x00", 3)
    if how == "no last line end":
        return how, data.rstrip()
    return how, (text + ("" if how.startswith("utf") else "é")).encode(how, "replace")


def nest(rng: Random, data: bytes) -> Made:
    """Brackets in brackets."""
    depth, (a, b) = (
        10 ** rng.randint(2, 5),
        rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"<a>", b"</a>"), (b"(", b")"))),
    )
    start = rng.choice((0, rng.randrange(len(data) + 1)))
    closed = b * depth if rng.random() < 0.7 else b""
    return f"{depth:,} × {a.decode()} at {start}", data[:start] + a * depth + closed + data[start:]


def often(rng: Random) -> int:
    """How many times: most often up to a thousand, which is quick, seldom up to a hundred thousand."""
    return round(10 ** (rng.uniform(3, 5) if rng.random() < 0.1 else rng.uniform(1, 3)))


def grow(rng: Random, data: bytes) -> Made:
    """A line many times, as it is or with other numbers."""
    lines = data.splitlines(keepends=True) or [b""]
    one = rng.choice(lines)
    times = min(often(rng), MOST // max(1, len(one)))
    if rng.random() < 0.5:
        return f"{one[:40]!r} {times:,} times", data + one * times
    parts = re.split(rb"\d+(?:\.\d+)?", one)
    made = [b"".join(p + b"%.2f" % rng.uniform(0, 40) for p in parts[:-1]) + parts[-1] for _ in range(times)]
    return f"{times:,} lines like {one[:40]!r}", data + b"".join(made)


LINES: tuple[Mutation, ...] = (number, number, word, line, line, encode, nest, grow, *BYTES)


# -- JSON, XML, YAML --------------------------------------------------------------------------------------------------


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found += [(value, key), *nodes(value[key])]
    return found


ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "x" * 100_000, "1e5", "a/../../b"),
    *([], {}, [[]], [None], {"": None}, [1, "2", None], [[0, 0]] * 2000, {str(k): k for k in range(20_000)}),
)


def structure(rng: Random, data: bytes) -> Made:
    """A part of a JSON document is missing, of another kind, or there very often."""
    try:
        document = json.loads(data)
    except ValueError:
        return number(rng, data)
    found = nodes(document)
    if not found:
        return number(rng, data)
    where, key = rng.choice(found)
    how = rng.choice(("missing", "odd", "odd", "often", "renamed"))
    if how == "missing":
        del where[key]
    elif how == "often":
        times, one = often(rng), where[key]
        if len(json.dumps(one)) * times > MOST:
            times = 10
        if isinstance(where, list):
            where[key:key] = [one] * times
        else:
            where |= {f"{key}{k}": one for k in range(times)}
        how = f"{times:,} times"
    elif how == "renamed" and isinstance(where, dict):
        where[rng.choice(WORDS)] = where.pop(key)
    else:
        where[key] = rng.choice(ODD)
        how = f"is {str(where[key])[:40]}"
    return f"{key!r} {how}", json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def heavy(rng: Random, data: bytes) -> Made:
    """A small thing tens of millions of times: what a limit on bytes alone lets through."""
    times = round(10 ** rng.uniform(5.5, 7.3))
    if data.lstrip().startswith(b"<"):
        return f"{times // 4:,} × <a/>", b"<annotation>" + b"<a/>" * (times // 4) + b"</annotation>"
    one, sep = rng.choice(((b"{}", b","), (b"[]", b","), (b"0", b","), (b'{"a":{}}', b",")))
    times //= max(1, len(one) // 2)
    start = data.find(b"[") + 1
    if not start:
        return f"{times:,} × {one.decode()}", b"[" + (one + sep) * times + one + b"]"
    return f"{times:,} × {one.decode()} at {start}", data[:start] + (one + sep) * times + data[start:]


def entity(rng: Random, data: bytes) -> Made:
    """XML that declares entities: the billion laughs, a file from outside."""
    laughs = "".join(f'<!ENTITY e{k + 1} "{f"&e{k};" * 10}">' for k in range(9))
    inside = rng.choice(
        (f'<!ENTITY e0 "ha">{laughs}', '<!ENTITY e9 SYSTEM "file:///etc/passwd">', '<!ENTITY % e9 "x">')
    )
    body = re.sub(rb">\s*[\w. ]+<", b">&e9;<", data, count=1)
    return "entities", b'<?xml version="1.0"?><!DOCTYPE a [' + inside.encode() + b"]>" + body.partition(b"?>")[2]


def alias(rng: Random, data: bytes) -> Made:
    """YAML whose aliases grow tenfold at each level, tags that name Python objects, dates that are none."""
    how = rng.choice(("aliases", "tag", "date", "merge", "nested"))
    levels = "".join(f"k{k + 1}: &k{k + 1} [{', '.join([f'*k{k}'] * 10)}]\n" for k in range(9))
    more = {
        "aliases": f"k0: &k0 [a]\n{levels}steps: *k9\n",
        "tag": "steps: !!python/object/apply:os.system ['true']\n",
        "date": "steps: 2024-13-45\n",
        "merge": "<<: *nothing\n",
        "nested": "loss: " + "[" * 3000 + "]" * 3000 + "\n",
    }[how]
    return f"YAML: {how}", data + b"\n" + more.encode() if rng.random() < 0.5 else more.encode()


def mutate(rng: Random, data: bytes, suffix: str) -> Made:
    """One mutation that suits a file of this kind; never of nothing."""
    data = data or b"\x00"
    kinds: tuple[Mutation, ...] = BYTES
    if suffix in TEXT:
        kinds = LINES
        if suffix in (".json", ".geojson", ".pnt"):
            kinds = (*(structure,) * 10, *LINES)
        elif suffix == ".xml":
            kinds = (*LINES, entity, entity)
        elif suffix in (".yaml", ".yml"):
            kinds = (*LINES, alias, alias, alias)
        if suffix in (".json", ".geojson", ".pnt", ".xml") and rng.random() < 1 / 300:
            return heavy(rng, data)
    what, made = rng.choice(kinds)(rng, data)
    return (what, made) if made != data else flip(rng, data)
