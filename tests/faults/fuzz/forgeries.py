"""Damage with correct checksums: valid JSON, records and members of a zip with wrong contents."""

from __future__ import annotations

import io
import json
import random
import struct
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c

from statekeeper.statestore.base.errors import CorruptFile, StatekeeperError
from statekeeper.statestore.format import batch_log, compression
from tests.faults.fuzz.choices import Inapplicable, a_length, one_kind_first, written
from tests.faults.fuzz.files import TEXTS, by_kind

_STRANGE_VALUES: tuple[Any, ...] = (
    2_000_000_000,
    2**63,
    10**400,
    -1,
    0,
    1.5,
    1e308,
    None,
    True,
    "",
    "\ud800",
    "../../../outside",
    "/outside",
    "x" * 70_000,
    "٣",
    [],
    {},
    [[]],
    {"": {}},
    {"a": [1] * 1000},
)


def json_value(chance: random.Random, root: Path) -> str:
    """Change a value, or drop or add a key, in a file that holds JSON."""
    kinds = by_kind(root)
    texts = [path for kind in TEXTS for path in kinds.get(kind, ()) if (root / path).stat().st_size < 2**20]
    path = chance.choice(one_kind_first(chance, {kind: kinds[kind] for kind in TEXTS if kind in kinds}) or texts)
    lines = (root / path).read_bytes().split(b"\n")
    parsed = {}
    for place, line in enumerate(lines):
        try:
            parsed[place] = json.loads(line)
        except ValueError:
            continue
    containers = [(place, part) for place, value in parsed.items() for part in _containers(value)]
    if not containers or chance.random() < 0.1:
        return written(
            root, path, chance.choice((b"[" * 100_000, b"v9\n{}", b"{}", b"null", b"v1")), "other text", chance
        )
    place, part = chance.choice(containers)
    keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    value = chance.choice(_STRANGE_VALUES)
    done = "an element more"
    if keys and chance.random() < 0.15:
        key = chance.choice(keys)
        del part[key]
        done = f"{key!r} is gone"
    elif keys and chance.random() < 0.9:
        key = chance.choice(keys)
        part[key] = value
        done = f"{key!r} is {str(value)[:40]!a}"
    elif isinstance(part, dict):
        part["more"] = value
    else:
        part.append(value)
    lines[place] = json.dumps(parsed[place]).encode()
    return written(root, path, b"\n".join(lines), done, chance)


def repack_changelog(chance: random.Random, root: Path) -> str:
    """Damage the records of a changelog below its compression, so that checksums of blocks fit."""
    files = by_kind(root).get("changelog")
    if not files:
        raise Inapplicable
    path = chance.choice(files)
    try:
        plain = bytearray(b"".join(compression.blocks((root / path).read_bytes(), path)))
    except CorruptFile as error:
        raise Inapplicable from error
    how = chance.choice(("flip", "length", "truncate", "double", "zeros"))
    at = a_length(chance, len(plain))
    if how == "flip" and plain:
        plain[chance.randrange(len(plain))] ^= 1 << chance.randrange(8)
    elif how == "length":
        plain[at : at + 4] = chance.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0"))
    elif how == "truncate":
        del plain[at:]
    elif how == "double":
        plain += bytes(plain)
    else:
        plain[at:at] = bytes(1000)
    if chance.random() < 0.2:
        plain[at:at] = bytes(chance.choice((2**20, 2**26)))
    sink = io.BytesIO()
    writer = compression.BlockWriter(sink)
    writer.write(plain)
    writer.finish()
    return written(root, path, sink.getvalue(), f"records damaged ({how}), packed again", chance)


def repack_batch_log(chance: random.Random, root: Path) -> str:
    """Damage the index or the members of a batch log, with checksums that fit."""
    files = by_kind(root).get("batch log")
    if not files:
        raise Inapplicable
    path = chance.choice(files)
    try:
        parsed = batch_log.parse_head((root / path).read_bytes(), path)
    except StatekeeperError as error:
        raise Inapplicable from error
    data = (root / path).read_bytes()
    changelogs = {place: data[one.start : one.start + one.length] for place, one in parsed.members.items()}
    how = chance.choice(("swap", "gone", "flip", "truncate", "foreign", "index", "record"))
    one, two = chance.choice(list(changelogs)), chance.choice(list(changelogs))
    if how == "swap":
        changelogs[one], changelogs[two] = changelogs[two], changelogs[one]
    elif how == "gone":
        del changelogs[one]
    elif how == "flip":
        flipped = bytearray(changelogs[one])
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        changelogs[one] = bytes(flipped)
    elif how == "truncate":
        changelogs[one] = changelogs[one][: a_length(chance, len(changelogs[one]))]
    elif how == "foreign":
        changelogs[one] = (root / chance.choice(files)).read_bytes()
    body = batch_log.encode(parsed.version, parsed.tag, parsed.record, changelogs)
    if how in ("index", "record"):
        body = _with_another_head(chance, body, "members" if how == "index" else None)
    return written(root, path, body, f"batch log: {how}")


def _with_another_head(chance: random.Random, body: bytes, key: str | None) -> bytes:
    """Change a value in the head of a batch log, and its checksum. `key`: where; None: anywhere."""
    front = struct.Struct(">8sII")
    magic, length, _ = front.unpack_from(body)
    head = json.loads(body[front.size : front.size + length])
    part = chance.choice(list(_containers(head if key is None else head[key])))
    keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    if keys:
        part[chance.choice(keys)] = chance.choice((*_STRANGE_VALUES, 2**62, part[chance.choice(keys)]))
    changed = json.dumps(head).encode()
    members = body[front.size + length :]
    return front.pack(magic, len(changed), google_crc32c.value(changed)) + changed + members


def repack_snapshot(chance: random.Random, root: Path) -> str:
    """Damage a member of a snapshot's zip, with a checksum that fits."""
    files = by_kind(root).get("snapshot")
    if not files:
        raise Inapplicable
    path = chance.choice(files)
    try:
        with zipfile.ZipFile(root / path) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError) as error:
        raise Inapplicable from error
    name = chance.choice(sorted(members))
    how = chance.choice(("flip", "truncate", "gone", "options", "metadata", "huge", "name", "twice"))
    outside = root.parent / "outside"
    if how == "flip" and members[name]:
        data = bytearray(members[name])
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        members[name] = bytes(data)
    elif how == "truncate":
        members[name] = members[name][: a_length(chance, len(members[name]))]
    elif how == "gone":
        del members[name]
    elif how == "options":
        options = [one for one in members if one.startswith("OPTIONS-")]
        for one in options:
            places = f"[DBOptions]\n  wal_dir={outside}\n  db_log_dir={outside}\n".encode()
            members[one] = members[one].replace(b"[DBOptions]\n", places)
    elif how == "metadata" and "metadata" in members:
        head, _, body = members["metadata"].partition(b"\n")
        value = _changed_metadata(chance, body, outside)
        members["metadata"] = head + b"\n" + value
    elif how == "huge":
        members[name] = bytes(chance.choice((2**20, 2**28)))
    elif how == "name":
        strange = chance.choice(
            (
                "../escaped",
                "/escaped",
                "a/b",
                "x" * 300,
                "..",
                "",
                "CURRENT/",
                "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
            )
        )
        members[strange] = members.pop(name)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        if how == "twice":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                archive.writestr(name, b"again")
    return written(root, path, sink.getvalue(), f"member {name}: {how}", chance)


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from _containers(part)
    elif isinstance(value, list):
        yield value
        for part in value:
            yield from _containers(part)


def _changed_metadata(chance: random.Random, body: bytes, outside: Path) -> bytes:
    try:
        value = json.loads(body)
    except ValueError:
        return b"{}"
    part = chance.choice(list(_containers(value)) or [{}])
    keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    if keys:
        part[chance.choice(keys)] = chance.choice((*_STRANGE_VALUES, str(outside), f"../../../../{outside.name}/x.sst"))
    return json.dumps(value).encode()
