"""The names of the records of a mirror; see `names`.

_statekeeper/mirror.json                the source of a mirror, and its newest mirrored batch
_statekeeper/mirrored/<number>.json     the files that a run of the mirror copied
"""

from __future__ import annotations

from statekeeper.statestore.format import names

MIRROR = f"{names.CONTROL}/mirror.json"
MIRRORED = f"{names.CONTROL}/mirrored"


def mirrored(number: int) -> str:
    """Return the path of the list of files that a run of a mirror copied."""
    return f"{MIRRORED}/{number:08}.json"


def parse_mirrored(path: str) -> int | None:
    """Return the number of a path or file name in `mirrored/`; None for another name."""
    digits, _, suffix = path.rpartition("/")[2].partition(".")
    return int(digits) if suffix == "json" and len(digits) == 8 and digits.isascii() and digits.isdecimal() else None


def is_snapshot(path: str) -> bool:
    """Return whether this is the zip of a snapshot, or its sidecar."""
    found = names.parse_store_path(path.removesuffix(names.SIDECAR))
    return found is not None and found[1].kind is names.StoreFileKind.SNAPSHOT


def is_final(path: str) -> bool:
    """Return whether the name of a file of state identifies its bytes: it contains a random id, and it is no snapshot. A
    repair writes the zip of a snapshot again under the same name, and each maintenance writes its own zip."""
    return is_unique(path) and not is_snapshot(path)


def is_unique(path: str) -> bool:
    """Return whether the name of a file of state contains a random id, so that no other bytes ever have this name."""
    place = names.parse_place(path)
    if place is None:
        return names.parse_batch_log(path) is not None
    file = names.parse_store_file(place[1].removesuffix(names.SIDECAR))
    return names.parse_shared_file(place[1]) is not None if file is None else file.version.id is not None
