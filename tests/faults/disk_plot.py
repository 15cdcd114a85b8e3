"""Draws the bytes on disk while a job runs and is maintained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.faults.maintenance_loop import Sample


def draw(samples: Sequence[Sample], target: Path) -> None:
    """Files and bytes below `state/` over the committed batches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    batches = [sample.batches for sample in samples]
    figure, files = pyplot.subplots(figsize=(8, 4))
    files.plot(batches, [sample.files for sample in samples], color="tab:blue", label="files")
    files.set_xlabel("committed batches")
    files.set_ylabel("files below state/")
    files.set_ylim(bottom=0)
    size = files.twinx()
    size.plot(batches, [sample.size_bytes / 2**20 for sample in samples], color="tab:orange", label="MiB")
    size.set_ylabel("MiB below state/")
    size.set_ylim(bottom=0)
    figure.legend(loc="upper left", bbox_to_anchor=(0.12, 0.88))
    figure.tight_layout()
    figure.savefig(target)
