"""Takes files out of the way, and puts them back."""

from __future__ import annotations

from statestore.errors import AlreadyExists, ObjectMissing
from statestore.format import names
from statestore.storage import Storage


def put_aside(storage: Storage, run: str, path: str) -> None:
    try:
        body = storage.read(path)
    except ObjectMissing:
        return  # an interrupted run did
    # A file that a query has written again since an interrupted run put it aside is no worse than the one before.
    storage.replace(names.aside(run, path), body)
    storage.delete([path])


def put_back(storage: Storage, run: str, path: str) -> None:
    aside = names.aside(run, path)
    try:
        storage.create(path, storage.read(aside))
    except AlreadyExists:
        return  # the query has written it again: it needs no other
    storage.delete([aside])
