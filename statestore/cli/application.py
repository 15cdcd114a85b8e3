"""`statekeeper application`."""

from __future__ import annotations

from pathlib import Path

import click

APPLICATION = Path(__file__).parent / "on_spark" / "statekeeper_on_spark.py"


@click.command()
def application() -> None:
    """Print the path of the file that spark-submit starts. application only reads.

    Its arguments are those of statekeeper, with --executor spark:

    spark-submit --master yarn "$(statekeeper application)" snapshot ROOT --executor spark
    """
    click.echo(APPLICATION)
