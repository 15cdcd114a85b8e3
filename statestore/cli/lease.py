"""`statekeeper lease`."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.durations import utc
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.common import Opened, Output, holder, output_option
from statekeeper.statestore.cli.roots import several_roots
from statekeeper.statestore.maintenance.records import lease as leases


@click.command()
@several_roots
@click.option(
    "--break",
    "break_it",
    is_flag=True,
    help="Release the lease of one ROOT. First make sure that its holder has ended: Statekeeper does not check this. "
    "Runs immediately.",
)
@output_option
def lease(root: Opened, break_it: bool, output: Output) -> int:
    """Show which process maintains a checkpoint, and since when.

    While one process holds the lease, a second process stops with the error root_held (exit code 11). If the holder
    does not renew its lease for 10 minutes, the lease expires. If its process ran on this machine and has ended, it
    expires at once. The lease only prevents double work: even if two
    processes work at the same time, the checkpoint is safe.

    Without --break, lease only reads.
    """
    if break_it and len(click.get_current_context().params["roots"]) != 1:
        raise click.UsageError("--break requires exactly one ROOT")
    clock = SystemClock()
    broken = (
        leases.break_lease(root.storage, run=RandomIds().fresh(), holder=holder(), clock=clock) if break_it else None
    )
    now = clock.now_seconds()
    found = leases.current(root.storage)
    body: dict[str, Any] = {"held": found is not None and found.is_alive(now), "broken": broken is not None}
    if found is not None:
        body |= {
            "epoch": found.lease.epoch,
            "holder": found.lease.holder,
            "verb": found.lease.verb,
            "since": utc(found.lease.since_seconds),
            "seen": None if found.seen_at_seconds is None else utc(found.seen_at_seconds),
            "released": found.lease.released,
        }
    output.show(body, lambda console: _print(console, found, broken, now))
    return 0


def _print(console: Console, found: leases.LeaseState | None, broken: leases.Lease | None, now: float) -> None:
    if broken is not None:
        console.print(
            tables.plain(f"released the lease of {broken.holder}: {broken.verb}, since {utc(broken.since_seconds)}")
        )
    elif found is None or found.lease.released:
        console.print("the lease is free")
    else:
        seen = "" if found.seen_at_seconds is None else f", seen {now - found.seen_at_seconds:,.0f} s ago"
        if found.is_alive(now):
            state = "active"
        else:
            state = f"{'its process has ended' if found.has_ended else 'expired'}; it can be acquired"
        line = (
            f"held by {found.lease.holder}: {found.lease.verb}, since {utc(found.lease.since_seconds)}{seen}: {state}"
        )
        console.print(tables.plain(line), soft_wrap=True)
