"""HDFS in its own process (Hadoop's MiniDFSCluster, in the release of Spark's Hadoop), and a relay that loses replies.
`python -m tests.support.hdfs_server` downloads its jar."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
import pytest

from tests.support.storage_servers import STORES, StoreServer

JARS = Path(pyspark.__file__).parent / "jars"
MINICLUSTER = STORES / "hadoop-client-minicluster.jar"
SPARKS_OWN = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.xerial.snappy:snappy-java",
)
SOURCE = Path(__file__).parent / "MiniHdfs.java"


class MiniHdfs(StoreServer):
    """Start it once; each test creates its own folder. Its superuser is the current user."""

    def __init__(self, namenodes: int = 1) -> None:
        super().__init__()
        self._namenodes = namenodes
        self._folder = tempfile.TemporaryDirectory(prefix="hdfs-")
        self.rpc_port = 0
        self.ports: list[int] = []

    def start(self) -> None:
        if not MINICLUSTER.exists():
            pytest.skip(f"no {MINICLUSTER.name}: make interop-hdfs gets it")
        command = ["java", "-Xmx512m", "-cp", f"{JARS}/*:{MINICLUSTER}", str(SOURCE), *self.arguments()]
        # The server ends when its standard input closes, also if the tests are killed.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        ready = self._line().split()
        assert ready[:1] == ["ready"], "Hadoop's cluster ended"
        self.rpc_port, *_ = ports = [int(port) for port in ready[1:]]
        self.ports = ports[1::2]
        self.port = self.ports[0]

    def stop(self) -> None:
        super().stop()
        self._folder.cleanup()

    def fail_over(self) -> None:
        """Make the other namenode the active one."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"failover\n")
        self._process.stdin.flush()
        assert self._line() == "done"

    @property
    def options(self) -> dict[str, str]:
        return {}

    def arguments(self) -> Sequence[str]:
        return [self._folder.name, str(self._namenodes)]

    def make_container(self, name: str) -> None:
        """Do nothing: a write creates the folders."""

    def url(self, container: str) -> str:
        servers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"webhdfs://{servers}/{container}/a root"

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()


class Wire(Enum):
    """The fault that the relay injects."""

    LOSE_ANSWER = "done, then the connection breaks"
    REFUSE = "answered with 503, not done"
    CUT_REQUEST = "half of the body arrives, then the connection breaks"
    CUT_ANSWER = "half of the answer arrives, then the connection breaks"
    WITHOUT_OPTIONS = "the options of a rename are not known, as HttpFS does not know them"


@dataclass
class _Rule:
    op: str
    to_datanode: bool
    wire: Wire
    times: int


class Relay:
    """Forwards requests to a namenode, and to the datanodes that it names. Each rule injects a fault into a given number of
    requests."""

    def __init__(self, hdfs: MiniHdfs) -> None:
        self._namenode = f"127.0.0.1:{hdfs.port}"
        self._datanode = ""
        self._rules: list[_Rule] = []
        self.happened: list[Wire] = []
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                relay._answer(self)

            def do_PUT(self) -> None:
                relay._answer(self)

            def do_DELETE(self) -> None:
                relay._answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def on(self, op: str, wire: Wire, *, to_datanode: bool = False, times: int = 1) -> None:
        """Inject a fault into the next requests with that operation."""
        self._rules.append(_Rule(op, to_datanode, wire, times))

    def _answer(self, asked: BaseHTTPRequestHandler) -> None:
        body = asked.rfile.read(int(asked.headers.get("Content-Length") or 0))
        to_datanode = "namenoderpcaddress=" in asked.path
        wire = self._what_happens(asked.path, to_datanode)
        if wire is Wire.REFUSE:
            asked.send_error(503)
            return
        path = re.sub("renameoptions=[A-Z]+&?", "", asked.path) if wire is Wire.WITHOUT_OPTIONS else asked.path
        onward = http.client.HTTPConnection(self._datanode if to_datanode else self._namenode)
        if wire is Wire.CUT_REQUEST:
            onward.putrequest(asked.command, path)
            onward.putheader("Content-Length", str(len(body)))
            onward.endheaders(body[: len(body) // 2])
        else:
            onward.request(asked.command, path, body, {"Content-Type": "application/octet-stream"})
            got = onward.getresponse()
            data = got.read()
        onward.close()
        if wire in (Wire.CUT_REQUEST, Wire.LOSE_ANSWER):
            asked.close_connection = True
            return
        asked.send_response(got.status)
        if location := got.getheader("Location"):
            parts = urlsplit(location)
            self._datanode = parts.netloc
            asked.send_header("Location", parts._replace(netloc=self.address).geturl())
        asked.send_header("Content-Length", str(len(data)))
        asked.end_headers()
        if wire is Wire.CUT_ANSWER:
            data = data[: len(data) // 2]
            asked.close_connection = True
        asked.wfile.write(data)

    def _what_happens(self, path: str, to_datanode: bool) -> Wire | None:
        for rule in self._rules:
            if rule.times and rule.to_datanode is to_datanode and f"op={rule.op}" in path:
                rule.times -= 1
                self.happened.append(rule.wire)
                return rule.wire
        return None


def fetch() -> None:
    """Download the jar to the folder of the tests, with Spark's package resolver."""
    from pyspark.sql import SparkSession

    (there,) = JARS.glob("hadoop-client-api-*.jar")
    release = there.stem.rpartition("-")[2]
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars.packages", f"org.apache.hadoop:hadoop-client-minicluster:{release}")
        .config("spark.jars.excludes", ",".join(SPARKS_OWN))
        .getOrCreate()
    )
    jars = session.sparkContext.getConf().get("spark.jars", "")
    session.stop()
    (found,) = [urlsplit(jar).path for jar in jars.split(",") if "hadoop-client-minicluster" in jar]
    STORES.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(found, MINICLUSTER)


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    fetch()
