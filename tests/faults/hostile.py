"""Runs every reading verb on checkpoints with planted files: `python -m tests.faults.hostile FOLDER`.

Each case runs in its own process with little memory and a time-out. The program prints one JSON object per case: the exit
code of each verb, and the files that it wrote outside its scratch folder.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.format.java_io import utf
from statekeeper.statestore.format.operators import encode_schema
from tests.faults.fuzz import dispatch
from tests.faults.fuzz.files import copy_tree, fingerprint
from tests.faults.fuzz.roots import Stage, made
from tests.faults.fuzz.verbs import is_typed, readers, run
from tests.support.unpacked import update_urls

MEMORY_BYTES = 768 * 2**20
"""The address space that a case may take in addition to that of the process."""

SECONDS = 120
_MIB = 2**20

Plant = Callable[[Path, Path], None]
"""Changes a checkpoint (first) so that it names a folder outside (second), or needs more memory than any host has."""


@dataclass(frozen=True)
class Hostile:
    """A case. `says`: expected output and exit code of some verbs."""

    root: str
    plant: Plant
    says: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    stage: Stage = Stage.WRITTEN


def _newest(root: Path, pattern: str) -> Path:
    found = sorted(root.glob(pattern), key=lambda path: (int(path.name.partition("_")[0].partition(".")[0]), path.name))
    return found[-1]


def _rezipped(root: Path, pattern: str, change: Callable[[dict[str, bytes]], Mapping[str, bytes]]) -> None:
    """All snapshots of a pattern with other entries."""
    for path in root.glob(pattern):
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, body in change(files).items():
                archive.writestr(name, body)
        path.write_bytes(out.getvalue())
        path.with_name(f"{path.name}.crc").unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _misleading_options(root: Path, outside: Path) -> None:
    sent = f"[DBOptions]\n  wal_dir={outside}\n  db_log_dir={outside}\n".encode()

    def mislead(files: dict[str, bytes]) -> dict[str, bytes]:
        return {name: body.replace(b"[DBOptions]\n", sent) for name, body in files.items()}

    _rezipped(root, "state/**/*.zip", mislead)


def _names_that_lead_out(root: Path, outside: Path) -> None:
    for name in ("../../../planted", f"{outside}/planted"):
        _rezipped(root, "state/0/0/*.zip", lambda files, name=name: {**files, name: b"planted"})
    link = zipfile.ZipInfo("000077.log")
    link.external_attr = 0o120777 << 16
    for path in root.glob("state/0/1/*.zip"):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(link, str(outside / "planted"))


def _tables_that_lead_out(root: Path, _: Path) -> None:
    def mislead(files: dict[str, bytes]) -> dict[str, bytes]:
        header, _, body = files["metadata"].partition(b"\n")
        fields = json.loads(body)
        for table in fields["sstFiles"]:
            table["dfsSstFileName"] = "../../../../planted.sst"
        return {**files, "metadata": header + b"\n" + json.dumps(fields).encode()}

    _rezipped(root, "state/0/0/*.zip", mislead)


def _zip_of_a_gigabyte(root: Path, _: Path) -> None:
    size_bytes = 2**30 - 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("MANIFEST-000005", "w") as member:
            for _ in range(size_bytes // (16 * _MIB)):
                member.write(bytes(16 * _MIB))
            member.write(bytes(size_bytes % (16 * _MIB)))
        archive.writestr("CURRENT", "MANIFEST-000005\n")
        archive.writestr("metadata", "v1\n{}")
    bomb = out.getvalue().replace(size_bytes.to_bytes(4, "little"), (17).to_bytes(4, "little"))
    for path in root.glob("state/0/0/*.zip"):
        path.write_bytes(bomb)


def _value_of_two_gigabytes(root: Path, _: Path) -> None:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as plain:
        plain.write(utf("v3") + utf("[]"))
        plain.write(struct.pack(">i", 3) + b"key" + struct.pack(">i", 2**31 - 1))
        for _ in range(1024):
            plain.write(bytes(_MIB))
    _newest(root, "state/0/0/1_*.changelog").write_bytes(out.getvalue().to_pybytes())


def _partitions(count: int) -> Plant:
    def plant(root: Path, _: Path) -> None:
        path = root / "state/0/_metadata/metadata"
        header, _, body = path.read_bytes().partition(b"\n")
        fields = json.loads(body)
        for store in fields["stateStoreInfo"]:
            store["numPartitions"] = count
        path.write_bytes(header + b"\n" + json.dumps(fields).encode())
        (root / "state/0/_metadata/.metadata.crc").unlink(missing_ok=True)

    return plant


def _sparse_commit(root: Path, _: Path) -> None:
    with (root / "commits/0").open("r+b") as file:
        file.truncate(20 * 2**30)


def _what_is_no_file(root: Path, outside: Path) -> None:
    for folder in ("", "commits/", "offsets/", "state/", "state/0/", "state/0/0/", "state/0/0/SSTs/", "_statekeeper/"):
        (root / folder).mkdir(exist_ok=True)
        (root / f"{folder}dangling").symlink_to(outside / "nowhere")
        (root / f"{folder}loop").symlink_to(root)
        os.mkfifo(root / f"{folder}fifo")
        (root / folder / os.fsdecode(b"no text \xff")).write_bytes(b"")
    (root / "state/0/0/999.zip").symlink_to(outside)
    os.mkfifo(root / "state/0/1/999.changelog")
    os.chdir(root / "state/0/1")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    os.chdir("/")


def _logs_that_are_no_files(root: Path, outside: Path) -> None:
    (root / "metadata").unlink()
    (root / "metadata").symlink_to(outside / "victim")
    newest = _newest(root, "offsets/[0-9]*")
    newest.unlink()
    os.mkfifo(newest)


def _odd_numbers(root: Path, _: Path) -> None:
    commit = _newest(root, "commits/[0-9]*").read_bytes()
    for name in (
        "4000000000",
        "9223372036854775807",
        "9223372036854775808",
        "007",
        "٣",
        "1" * 200,
        "-1",
        "1e3",
        "+5",
        "1_0",
    ):
        for folder in ("commits", "offsets"):
            (root / folder / name).write_bytes(commit)
    for place in ("state/0/4294967296", "state/99999999999/0", "state/00/0", "state/0/01", "state/0/٣", "state/0/-1"):
        (root / place).mkdir(parents=True)
        (root / place / "1.changelog").write_bytes(b"")
    for name in ("9223372036854775808.zip", "٣.changelog", "1_" + "x" * 36 + ".zip", "a\nb\x1b[31m.zip"):
        (root / "state/0/0" / name).write_bytes(b"planted")


def _deep_json(root: Path, _: Path) -> None:
    _newest(root, "commits/[0-9]*").write_bytes(b"v2\n" + b"[" * 200_000)
    _newest(root, "offsets/[0-9]*").write_bytes(b"v1\n" + b'{"conf":' * 100_000)
    (root / "metadata").write_bytes(b'{"id":' + b"9" * 5000 + b"}")


def _deep_schema(root: Path, _: Path) -> None:
    deep = '{"type":"array","containsNull":true,"elementType":' * 900 + '"long"' + "}" * 900
    schema = f'{{"type":"struct","fields":[{{"name":"a","type":{deep},"nullable":true,"metadata":{{}}}}]}}'
    for path in root.glob("state/*/0/_metadata/schema"):
        path.write_bytes(encode_schema(schema, schema))
    for path in root.glob("_statekeeper/binding.json"):
        body = json.loads(path.read_bytes())
        body["stores"][0].update(key=schema, value=schema)
        path.write_text(json.dumps(body))


def _endless_commit(root: Path, _: Path) -> None:
    """As many empty arrays as fit into a file that is just not too large for the storage."""
    _newest(root, "commits/[0-9]*").write_bytes(b'v2\n{"stateUniqueIds":{"0":[' + b"[]," * (15 * _MIB) + b"[]]}}")


def _prefix_of_billions(root: Path, _: Path) -> None:
    for path in root.glob("state/0/_stateSchema/*/*"):
        path.write_bytes(path.read_bytes().replace(b'"numColsPrefixKey":1', b'"numColsPrefixKey":2'))
    path = root / "state/0/_metadata/metadata"
    if path.exists():
        path.write_bytes(path.read_bytes().replace(b'"numColsPrefixKey":0', b'"numColsPrefixKey":2000000000'))


def _journal_that_leads_out(root: Path, _: Path) -> None:
    place = root / "_statekeeper/switchover/00000001"
    place.mkdir(parents=True)
    store = {"operator": 0, "partition": 0, "store": "../../../planted", "snapshot": "1.zip", "digest": None}
    begun = {"format": 1, "run": "../../../planted", "to": "2", "batch": 0, "header": "v1", "commit": ""}
    (place / "begun.json").write_text(json.dumps({**begun, "stores": [{**store, "reused": False}]}))


CASES: dict[str, Hostile] = {
    "options of RocksDB that name other directories": Hostile(
        "v2-transformWithState", _misleading_options, {"audit --deep": (0, "")}
    ),
    "names in a zip that lead out of its folder": Hostile(
        "v2-transformWithState", _names_that_lead_out, {"audit": (3, "a file that is not part of a snapshot")}
    ),
    "tables that lead out of the store": Hostile(
        "own-v2", _tables_that_lead_out, {"audit": (3, "invalid file names")}, Stage.SNAPSHOTS
    ),
    "a zip that unpacks to 1 GiB": Hostile("own-v2", _zip_of_a_gigabyte, {"audit": (3, ".zip")}, Stage.SNAPSHOTS),
    "a value of 2 GiB": Hostile("own-v2", _value_of_two_gigabytes, {"audit --deep": (3, "a record of 2,147,483,6")}),
    "two billion partitions": Hostile("v1-aggregation", _partitions(2_000_000_000), {"audit": (3, "2,000,000,000")}),
    "a hundred thousand partitions": Hostile("v1-aggregation", _partitions(100_000), {"dump": (0, "")}),
    "a commit of 20 GB": Hostile("own-v2", _sparse_commit, {"audit": (3, "has 21,474,836,480 bytes")}),
    "links, FIFOs, sockets and names that are no text": Hostile("own-v2", _what_is_no_file, {"audit": (3, "fifo")}),
    "the same in a checkpoint of Spark's": Hostile("v1-aggregation", _what_is_no_file, {"audit": (3, "dangling")}),
    "logs that are links and FIFOs": Hostile(
        "v2-aggregation", _logs_that_are_no_files, {"audit": (3, "symbolic link")}
    ),
    "numbers that Spark does not write": Hostile("own-v2", _odd_numbers, {"audit": (3, "")}),
    "the same beside Spark's": Hostile("v1-aggregation", _odd_numbers, {"audit": (3, "")}),
    "JSON without end": Hostile("own-v2", _deep_json, {"audit": (3, "not valid JSON")}),
    "a commit of millions of arrays": Hostile("own-v2", _endless_commit, {"audit": (3, "the JSON text has")}),
    "a type of 900 levels": Hostile("v1-aggregation", _deep_schema, {"dump": (12, "100 levels")}),
    "a type of 900 levels, own": Hostile("own-v2", _deep_schema, {"dump": (12, "100 levels")}),
    "a prefix of two billion columns": Hostile("v1-aggregation", _prefix_of_billions, {"dump": (1, "prefix columns")}),
    "a journal that leads out": Hostile("own-v2", _journal_that_leads_out, {"gc, the plan": (1, "switchover")}),
}


def main() -> int:
    folder = Path(sys.argv[1])
    cache = folder / "roots"
    cache.mkdir(parents=True)
    for name in sys.argv[2:] or CASES:
        case = CASES[name]
        made(cache, case.root, case.stage)
    for name in sys.argv[2:] or CASES:
        print(json.dumps({"case": name, **_played(name, cache, folder)}), flush=True)
    return 0


def _played(name: str, cache: Path, folder: Path) -> dict[str, Any]:
    """Run a case in its own process, and return its result."""
    result, log = folder / "result", folder / "log"
    result.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with log.open("w") as errors:
                os.dup2(errors.fileno(), 2)
            result.write_text(json.dumps(_play(CASES[name], cache, folder / "case")))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + SECONDS
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            break
        time.sleep(0.01)
    shutil.rmtree(folder / "case", ignore_errors=True)
    if not result.exists():
        return {"died": log.read_text()[-2000:] or "hangs, or was killed", "verbs": {}, "wrote": []}
    played: dict[str, Any] = json.loads(result.read_text())
    return played


def _play(case: Hostile, cache: Path, folder: Path) -> dict[str, Any]:
    root, outside, scratch, temporary = (folder / name for name in ("root", "outside", "scratch", "temporary"))
    copy_tree(made(cache, case.root, case.stage), root)
    update_urls(root, folder)
    for place in (outside, temporary):
        place.mkdir()
    (outside / "victim").write_text("of somebody else")
    (outside / "000004.log").write_text("of a database that is in use")
    case.plant(root, outside)
    os.environ["TMPDIR"] = str(temporary)
    tempfile.tempdir = None
    os.chdir(temporary)
    dispatch.limit_memory()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    before = {place: fingerprint(place) for place in (root, outside, temporary)}
    verbs, wrote = {}, []
    chance = random.Random(1)
    for call in readers(chance, scratch, "state/0/0"):
        arguments = [one.replace("jsonl", "table").replace("json", "table") for one in call.arguments]
        done = run(call.verb.partition(" ")[0].rstrip(","), root, *arguments)
        verbs[call.verb] = {
            "exit": done.exit_code,
            "is_typed": is_typed(call, done),
            "says": printable(done.output)[-6000:],
            "error": "" if done.exc_info is None else "".join(traceback.format_exception(*done.exc_info))[-3000:],
        }
        changed = [place.name for place, seen in before.items() if fingerprint(place) != seen]
        if changed or (scratch.exists() and any(scratch.iterdir())):
            wrote.append(f"{call.verb} wrote to {changed or 'scratch, and left it there'}")
            before = {place: fingerprint(place) for place in before}
    return {"died": "", "verbs": verbs, "wrote": wrote}


if __name__ == "__main__":
    sys.exit(main())
