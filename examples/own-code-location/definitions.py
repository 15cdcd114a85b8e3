"""The code location: one fleet for each `*.toml` in a folder.

The name of the file is the name of the fleet; a `-` becomes a `_`.
"""

import os
from pathlib import Path

import dagster as dg

from statekeeper.dagster import build_definitions

FOLDER = Path(os.environ.get("STATEKEEPER_FOLDER", "/etc/statekeeper"))

FLEETS = {file.stem.replace("-", "_"): file for file in sorted(FOLDER.glob("*.toml"))}

defs = dg.Definitions.merge(*(build_definitions(file, name=name) for name, file in FLEETS.items()))
