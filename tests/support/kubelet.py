"""The part of a Kubernetes cluster that Dagster's launcher of runs needs: it accepts jobs, and runs each as a pod.

A pod is a process with the command and the environment of the job, a `PATH` with this interpreter, and a `TMPDIR`. It has
its own host name, process ids, temporary folder and `DAGSTER_HOME`, which has the files of the config map only. The other
files of the machine stand for its image. This needs root.
"""

from __future__ import annotations

import http.server
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = "pod"
_IN_POD = ("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def can_run_pods() -> bool:
    """Whether this machine lets a process have its own host name, mounts and process ids."""
    with suppress(OSError):
        return subprocess.run([*_IN_POD, "true"], capture_output=True, check=False).returncode == 0
    return False


@dataclass(frozen=True)
class Pod:
    """A pod with the job that it runs. `log`: the file with its output."""

    job: Mapping[str, Any]
    process: subprocess.Popen[bytes]
    log: Path


class Kubelet:
    """Accepts jobs over HTTP. `config_map`: the files in the `DAGSTER_HOME` of each pod."""

    def __init__(self, folder: Path, config_map: Mapping[str, str]) -> None:
        self.pods: list[Pod] = []
        self._folder, self._config_map = folder, config_map
        kubelet = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                is_job = self.path.split("?")[0].endswith("/jobs")
                if is_job:
                    kubelet.run(job)
                body = json.dumps(job).encode()
                self.send_response(201 if is_job else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def run(self, job: Mapping[str, Any]) -> None:
        """Run a job as a pod."""
        (container,) = job["spec"]["template"]["spec"]["containers"]
        environment = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        home = environment["DAGSTER_HOME"]
        number = len(self.pods)
        files = self._folder / f"config map {number}"
        files.mkdir()
        for name, text in self._config_map.items():
            (files / name).write_text(text)
        temporary = self._folder / f"tmp {number}"
        temporary.mkdir()
        script = (
            f"hostname {HOST}-{number} && mount -t tmpfs none {shlex.quote(home)} && "
            f"cp {shlex.quote(str(files))}/* {shlex.quote(home)} && exec {shlex.join(container['args'])}"
        )
        log = self._folder / f"pod {number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_IN_POD, "sh", "-c", script],
                env={
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                    "TMPDIR": str(temporary),
                    **environment,
                },
                cwd=temporary,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.pods.append(Pod(job, process, log))

    @classmethod
    @contextmanager
    def started(cls, folder: Path, config_map: Mapping[str, str]) -> Iterator[Kubelet]:
        kubelet = cls(folder, config_map)
        thread = threading.Thread(target=kubelet._server.serve_forever)
        thread.start()
        try:
            yield kubelet
        finally:
            kubelet._server.shutdown()
            kubelet._server.server_close()
            thread.join()
            for pod in kubelet.pods:
                pod.process.kill()
                pod.process.wait()

    def kubeconfig(self) -> str:
        """The file with which a client finds this kubelet."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                "users": [{"name": "me", "user": {}}],
            }
        )
