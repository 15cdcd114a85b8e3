"""Takes the screenshots in the docs: it starts the flights job with Dagster and opens the UI in a headless Chromium.

    python -m tests.assets.take_pictures [--minutes 3] [--only mirror mirror-check]

It needs `chromium` on the PATH and writes to docs/pictures/. Look at the pictures before you commit them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from statekeeper.pipelines.flights.job import Places
from tests.support.running import REPOSITORY, Running, running

PICTURES = REPOSITORY / "docs" / "pictures"
SIZE = "1500,1000"


def pages() -> dict[str, str]:
    """The pages, by the name of their picture."""
    return {
        "asset-graph": "assets/lineage?view=lineage&lineageScope=neighbors&lineageDepth=3",
        "check": "assets/lineage?view=checks&checkDetail=lineage_is_gapless",
        "fleet-health": "assets/fleet_health?view=events",
        "lineage": "assets/lineage?view=events",
        "retention": "assets/retention?view=events",
        "automation": "automation",
        "clone": "assets/clone?view=events",
        "savepoint": "assets/savepoint?view=events",
        "mirror": "assets/mirror?view=events",
        "mirror-check": "assets/mirror?view=checks&checkDetail=mirror_is_fresh",
    }


def configure_mirror(folder: Path) -> None:
    """Add a mirror of the flights job to its configuration, before the job starts."""
    configuration = Places(folder / "flights").configuration()
    url = 'url = "state"'
    mirror = f'mirror = {{ url = "{folder / "replica"}", lag = "10m" }}'
    configuration.write_text(configuration.read_text().replace(url, f"{url}\n{mirror}"))


def keep_mirror(platform: Running) -> None:
    """Launch the mirror until a run has deleted its copies of files that the source deleted."""

    def is_one_more(before: int) -> bool:
        return len(platform.materializations("mirror")) > before

    while not any(one["deletions"] for one in platform.materializations("mirror")):
        before = len(platform.materializations("mirror"))
        platform.launch("flights", "mirror_checkpoint")
        platform.wait_for("the mirror", partial(is_one_more, before), 120)


def keep_copies(platform: Running, folder: Path) -> None:
    """Launch a clone, and a savepoint with rows, and wait for both."""
    copies: dict[str, dict[str, Any]] = {
        "clone": {"new_query": True},
        "savepoint": {"keep": "DELTA"},
    }
    for asset, config in copies.items():
        destination = str(folder / asset)
        platform.launch("flights", f"{asset}_checkpoint", {"destination": destination, "do": "APPLY", **config})
        platform.wait_for(f"the {asset}", partial(platform.materializations, asset), 120)


def take(chromium: str, url: str, target: Path) -> None:
    """Take a screenshot of a page after it has loaded. Raises `CalledProcessError`."""
    with tempfile.TemporaryDirectory() as profile:
        how = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
        how += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        how += ["--virtual-time-budget=20000", f"--window-size={SIZE}", f"--screenshot={target}"]
        subprocess.run([chromium, *how, url], check=True, capture_output=True, timeout=120)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes that the job runs before the screenshots")
    parser.add_argument("--only", metavar="PICTURE", nargs="+", help="names of the pictures to take, such as mirror")
    chosen = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not on the PATH; install it: apt-get install chromium")
        return 2
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="statekeeper-pictures-") as name:
        folder = Path(name)
        configure_mirror(folder)
        home = folder / "flights" / "dagster"
        arguments = ("--folder", str(folder / "flights"))
        with running(folder, "statekeeper.pipelines.flights.job", *arguments, home=home) as platform:
            enough = max(2, int(chosen.minutes))

            def is_something_to_see() -> bool:
                deleted = sum(one["deleted_files"] for one in platform.materializations("retention"))
                return deleted > 0 and len(platform.materializations("fleet_health")) >= enough

            platform.wait_for("deletions, and points of a plot", is_something_to_see, chosen.minutes * 60 + 240)
            keep_copies(platform, folder)
            keep_mirror(platform)
            for picture, page in pages().items():
                if chosen.only and picture not in chosen.only:
                    continue
                target = PICTURES / f"ui-{picture}.png"
                take(chromium, f"http://127.0.0.1:{platform.port}/{page}", target)
                print(target.relative_to(REPOSITORY))
    return 0


if __name__ == "__main__":
    sys.exit(main())
