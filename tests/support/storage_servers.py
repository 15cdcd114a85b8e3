"""Servers for the clients of Azure and Google Cloud Storage, one process each. `make interop-stores` installs them."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from statekeeper.statestore.storage import StorageSpec

STORES = Path(__file__).resolve().parents[2] / "var" / "stores"


class StoreServer(ABC):
    """Start it once; each test creates its own container or bucket."""

    program: str
    """The path of the server, relative to `STORES`."""

    def __init__(self) -> None:
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            self.port = chosen.getsockname()[1]
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = STORES / self.program
        if not program.exists():
            pytest.skip(f"no {program.name}: make interop-stores gets it")
        self._process = subprocess.Popen([str(program), *self.arguments()], stdout=subprocess.DEVNULL)
        for _ in range(300):
            with socket.socket() as tried:
                if not tried.connect_ex(("127.0.0.1", self.port)):
                    return
            assert self._process.poll() is None, f"{program.name} ended"
            time.sleep(0.1)
        raise AssertionError(f"{program.name} does not listen")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def new_root(self) -> StorageSpec:
        """An empty root in a new container."""
        name = f"container-{next(self._numbers)}"
        self.make_container(name)
        return StorageSpec(self.url(name), tuple(self.options.items()))

    @property
    @abstractmethod
    def options(self) -> dict[str, str]: ...

    @abstractmethod
    def arguments(self) -> Sequence[str]: ...

    @abstractmethod
    def make_container(self, name: str) -> None: ...

    @abstractmethod
    def url(self, container: str) -> str: ...


class Azurite(StoreServer):
    """Microsoft's emulator of blob storage."""

    program = "node_modules/.bin/azurite-blob"
    # The account that each Azurite has, and that Microsoft publishes.
    account = "devstoreaccount1"
    account_key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    @property
    def options(self) -> dict[str, str]:
        fields = {
            "DefaultEndpointsProtocol": "http",
            "AccountName": self.account,
            "AccountKey": self.account_key,
            "BlobEndpoint": f"http://127.0.0.1:{self.port}/{self.account}",
        }
        return {"connection_string": "".join(f"{name}={value};" for name, value in fields.items())}

    def arguments(self) -> Sequence[str]:
        return ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--blobPort", str(self.port)]

    def make_container(self, name: str) -> None:
        from azure.storage.blob import BlobServiceClient

        BlobServiceClient.from_connection_string(self.options["connection_string"]).create_container(name)

    def url(self, container: str) -> str:
        return f"abfss://{container}@{self.account}.dfs.core.windows.net/a root"


class GoogleStore(StoreServer):
    """A server with Google's JSON API."""

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint_url": f"http://127.0.0.1:{self.port}", "token": "anon"}

    def make_container(self, name: str) -> None:
        self._post("storage/v1/b?project=any", json.dumps({"name": name}).encode(), "application/json")

    def url(self, container: str) -> str:
        return f"gs://{container}/a root"

    def put(self, url: str, body: bytes) -> None:
        """Write an object, as another process does."""
        parts = urlsplit(url)
        name = quote(parts.path.lstrip("/"), safe="")
        target = f"upload/storage/v1/b/{parts.netloc}/o?uploadType=media&name={name}"
        self._post(target, body, "application/octet-stream")

    def _post(self, target: str, body: bytes, kind: str) -> None:
        url = f"{self.options['endpoint_url']}/{target}"
        with urllib.request.urlopen(urllib.request.Request(url, data=body, headers={"Content-Type": kind})):
            pass


class FakeGcs(GoogleStore):
    """fake-gcs-server: Google's JSON API, with its preconditions, except those of a copy."""

    program = "bin/fake-gcs-server"

    def arguments(self) -> Sequence[str]:
        here = ("-host", "127.0.0.1", "-port", str(self.port), "-public-host", f"127.0.0.1:{self.port}")
        return ["-scheme", "http", "-backend", "memory", "-log-level", "error", *here]


class Testbench(GoogleStore):
    """Google's own test server for its client libraries, with the preconditions of a copy.

    It rejects the uploads of gcsfs, whose lines end without a carriage return: use `put`.
    """

    __test__ = False
    program = "testbench/bin/gunicorn"

    def arguments(self) -> Sequence[str]:
        return [f"--bind=127.0.0.1:{self.port}", "--threads=4", "--log-level=error", "testbench:run()"]

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
