"""Decides which notices the people of a query get, and when. Pure.

    OK -> WARN -> ERROR -> OK      one notice for each change of the status
    still WARN or ERROR            one reminder a day: silence must not look like health

The status belongs to a subject: a query, or the fleet for a problem of the configuration. A problem with the same status
gets no notice of its own; the reminder shows the newest problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.maintenance.verbs.config import Policies

REMINDER_SECONDS = 86_400.0
_NO_TEAM = Policies()


@dataclass(frozen=True)
class Told:
    """What people know of a subject that is not OK, or that may become so.

    status          that of the newest notice
    since_seconds   when the status began, since the epoch
    told_seconds    time of the newest notice
    doubtful        the status that the last look found and that the next one must confirm; None without doubt
    """

    status: Status
    since_seconds: float
    told_seconds: float
    doubtful: Status | None = None


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A change of a status, or a reminder. `since_seconds`: when the status before it began, or this one for a reminder.
    `run`: the URL or the name of the run that saw it; "" without one."""

    subject: str
    before: Status
    now: Status
    text: str
    at_seconds: float
    since_seconds: float
    team: str = ""
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    run: str = ""

    @property
    def is_reminder(self) -> bool:
        """Whether people know the status already."""
        return self.before is self.now

    def __str__(self) -> str:
        about = [f"owner: {self.owner}"] if self.owner else []
        about += [f"run: {self.run}"] if self.run else []
        named = f"{self.subject} ({', '.join(about)})" if about else self.subject
        change = f"still {self.now.name}" if self.is_reminder else f"{self.before.name} -> {self.now.name}"
        return f"{named}: {change}: {self.text}"


def next_notice(
    subject: str,
    told: Told | None,
    status: Status,
    text: str,
    *,
    now_seconds: float,
    is_certain: bool = True,
    policies: Policies = _NO_TEAM,
    run: str = "",
    reminder_seconds: float = REMINDER_SECONDS,
) -> tuple[Told | None, Notice | None]:
    """Decide whether a look at a subject causes a notice. Returns what people know then, None if it is OK; and the notice.

    `is_certain`: False for a transient error, such as a storage that does not answer. It causes a notice if two consecutive
    looks find it. `policies`: of the subject; `run`: of the notice;
    `reminder_seconds`: least time between two reminders.
    """
    before = told.status if told else Status.OK
    if status > before and not is_certain and (told is None or told.doubtful is None):
        doubted = told or Told(Status.OK, now_seconds, now_seconds)
        return replace(doubted, doubtful=status), None
    if status is not before:
        since = told.since_seconds if told else now_seconds
        after = None if status is Status.OK else Told(status, now_seconds, now_seconds)
    elif told is None or status is Status.OK:
        return None, None
    elif now_seconds - told.told_seconds < reminder_seconds:
        return replace(told, doubtful=None), None
    else:
        since, after = told.since_seconds, replace(told, told_seconds=now_seconds, doubtful=None)
    return after, Notice(
        subject=subject,
        before=before,
        now=status,
        text=text,
        at_seconds=now_seconds,
        since_seconds=since,
        team=policies.team,
        owner=policies.owner,
        labels=dict(policies.labels),
        run=run,
    )
