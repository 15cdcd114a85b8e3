"""The option --file-sink of the verbs that append a batch, and its lines in their plans."""

from __future__ import annotations

import click

from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.maintenance.rewrites.engine import RewritePlan

file_sink_option = click.option(
    "--file-sink",
    metavar="URL",
    help="Output folder of the query, if it writes files with Spark's file sink (parquet, json, csv, orc or text, "
    "with a path). The command adds an entry for the appended batch to _spark_metadata in this folder. Without this "
    "entry, the sink and all readers of the folder fail. Omit the option for other sinks. You can also omit it to "
    "finish an interrupted run, which knows the URL.",
)


def file_sink_lines(planned: RewritePlan) -> list[str]:
    """Return the lines of a plan about the file sink of the query."""
    if planned.file_sink is None:
        if planned.origin is Origin.OWN:
            return []  # no batch is appended
        return [
            "if the query writes files with Spark's file sink (parquet, json, csv, orc or text, with a path), add "
            "--file-sink URL: otherwise its log lacks this batch, and the sink and all readers of the output fail"
        ]
    entry, read_bytes = planned.file_sink.entry, planned.file_sink.read_bytes
    lines = [f"adds {entry.path} to the file sink {entry.url}; reads {read_bytes:,} bytes for it"]
    if planned.file_sink.assumed:
        lines.append(f"assumes that {planned.file_sink.assumed}")
    return lines
