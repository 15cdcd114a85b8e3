"""Which tests run on one worker, and in which order the workers begin them.

A unit is a Spark session with all its tests, an `xdist_group`, a module whose tests share a fixture, or a single test. The
workers collect the tests and write down their units. The process that controls them begins the long units first.

pytest-xdist 3.8 writes the groups into the ids of the tests. Since pytest 9.2 this has no effect: each worker starts a
Spark session, and makes the fixtures of each module again.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK_SESSION = "one Spark session"
MOST_SPARK_SESSIONS = 2
"""The tests of Spark are as long as all others, so those of queries and those of jobs each have a session."""
SPARK_JOBS = "Spark jobs"
_PLUGIN = "units of tests"
_FIRST = (
    SPARK_SESSION,
    SPARK_JOBS,
    "tests/assets/test_platform.py",
    "planted files",
    "tests/cli/test_untrusted_records.py",
    "docs",
    "wheel",
    "tests/assets/",
    "tests/faults/",
    "tests/packaging/",
    "tests/examples/",
    "tests/maintenance/",
)
"""The units that take longest, by their beginning, and where long tests are. Short ones at the end fill the gaps."""


def unit_of(item: pytest.Item) -> str:
    """Return the name of the tests that one worker runs. A single test has its id."""
    if "delta_session" in getattr(item, "fixturenames", ()):
        is_of_queries = item.nodeid.startswith("tests/interop/")
        return f"{SPARK_SESSION} for {'queries' if is_of_queries else 'jobs'}"
    if item.get_closest_marker("spark"):
        return SPARK_JOBS
    group = item.get_closest_marker("xdist_group")
    if group is not None:
        return str(group.args[0])
    return item.nodeid.partition("::")[0] if _shares_fixtures(item) else item.nodeid


def _shares_fixtures(item: pytest.Item) -> bool:
    """Whether other tests of its module use a fixture of the same module or folder, which would be made on each worker."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = [] if info is None else [found[-1] for found in info.name2fixturedefs.values() if found]
    return any(one.scope == "module" and one.baseid for one in definitions)


def sort_and_keep(items: list[pytest.Item], place: Path) -> None:
    """Sort the tests by the time at which their unit begins, and write the units down."""
    units = {item.nodeid: unit_of(item) for item in items}
    items.sort(key=lambda item: _rank(units[item.nodeid]))
    new = place.with_name(f"{place.name}.{os.getpid()}")
    new.write_text(json.dumps(units))
    new.replace(place)


def _rank(unit: str) -> int:
    return next((rank for rank, first in enumerate(_FIRST) if unit.startswith(first)), len(_FIRST))


class LongestFirst(LoadScopeScheduling):
    """Gives whole units to the workers, in the order in which they are collected."""

    def __init__(self, config: pytest.Config, log: Any, place: Path) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._place = place
        self._units: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._units:
            self._units = json.loads(self._place.read_text())
        return self._units[nodeid]


class _Units:
    """With several workers: tells each where to write down the units."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="units-"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["units"] = str(self._folder / "units.json")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LongestFirst | None:
        is_ours = config.getvalue("dist") == "loadgroup"
        return LongestFirst(config, log, self._folder / "units.json") if is_ours else None

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self._folder)


class _OfWorker:
    """In a worker: writes down the units of the tests that are not deselected."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        sort_and_keep(items, self.place)


def register(config: pytest.Config) -> None:
    """Take over the distribution of the tests, if there are several workers."""
    told = getattr(config, "workerinput", {}).get("units")
    if told is not None:
        config.pluginmanager.register(_OfWorker(Path(told)), _PLUGIN)
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(_Units(), _PLUGIN)


def require_room_for(config: pytest.Config, unit: str, *, most: int) -> None:
    """Fail if as many other workers that are alive have begun a unit of this kind."""
    plugin = config.pluginmanager.getplugin(_PLUGIN)
    if not isinstance(plugin, _OfWorker):
        return
    begun = [path.read_text() for path in plugin.place.parent.glob(f"{unit}.*.worker")]
    if len([pid for pid in begun if Path("/proc", pid).exists()]) >= most:
        pytest.fail(f"more than {most} workers run parts of {unit!r}: the tests are not distributed as units")
    plugin.place.with_name(f"{unit}.{os.getpid()}.worker").write_text(str(os.getpid()))
