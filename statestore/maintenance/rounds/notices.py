"""Decides which notices the people of a query get, and when. Pure.

    OK -> WARN -> ERROR -> OK      one notice for each change of the status
    still WARN or ERROR            one reminder a day: silence must not look like health

The status belongs to a subject: a query, or the fleet for a problem of the configuration. A problem with the same status
gets no notice of its own; the reminder shows the newest problem.

A notice is recorded before it is sent, and again when a channel has accepted it. A process that is killed in between leaves
it behind as *unsent*, and the next look sends it again, with the same id: see `Notice.id`. If another channel has accepted
it and PagerDuty has not, it is unsent only for PagerDuty, which pages a person. A newer notice replaces it then, because
all notices of a subject are one incident.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TypeAlias

from statekeeper.statestore.maintenance.rounds.visit import Status
from statekeeper.statestore.maintenance.verbs.config import Policies

REMINDER_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A change of a status, or a reminder. `since_seconds`: when the status before it began, or this one for a reminder.
    `run`: the URL or the name of the run that saw it; "" without one. `is_repeated`: it was sent before, and it is unknown
    whether it was received. `only_pagerduty`: another channel has accepted it, and PagerDuty has not."""

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
    is_repeated: bool = False
    only_pagerduty: bool = False

    @property
    def id(self) -> str:
        """The same for each repetition of this notice, and different for each other notice: a receiver that has seen it
        can drop it."""
        said = f"{self.subject}\0{self.before.name}\0{self.now.name}\0{self.at_seconds!r}"
        return sha256(said.encode()).hexdigest()[:32]

    @property
    def is_reminder(self) -> bool:
        """Whether people know the status already."""
        return self.before is self.now

    def __str__(self) -> str:
        about = [f"owner: {self.owner}"] if self.owner else []
        about += [f"run: {self.run}"] if self.run else []
        named = f"{self.subject} ({', '.join(about)})" if about else self.subject
        change = f"still {self.now.name}" if self.is_reminder else f"{self.before.name} -> {self.now.name}"
        again = " (repeated: the channel did not confirm the first one)" if self.is_repeated else ""
        return f"{named}: {change}{again}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class Told:
    """What people know of a subject that is not OK, or that may become so.

    status          that of the newest notice
    since_seconds   when the status began, since the epoch
    told_seconds    time of the newest notice
    doubtful        the status that the last look found and that the next one must confirm; None without doubt
    team, owner     of the newest notice: they get the end of the problem, also if the configuration has changed since
    unsent          the newest notice until a channel has accepted it, and PagerDuty if the team has it
    """

    status: Status
    since_seconds: float
    told_seconds: float
    doubtful: Status | None = None
    team: str = ""
    owner: str = ""
    unsent: Notice | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether no channel has the newest notice. The next notice waits for it."""
        return self.unsent is not None and not self.unsent.only_pagerduty


Send: TypeAlias = Callable[[Notice], Notice | None]
"""Sends a notice. Returns what is left to send: None, the notice, or the notice with `only_pagerduty`."""


def sent(told: Told, left: Notice | None = None) -> Told | None:
    """Return what is known of a subject after its notice was sent. `left`: see `Send`. Pure."""
    is_over = told.status is Status.OK and told.doubtful is None and left is None
    return None if is_over else replace(told, unsent=left)


def told_again(told: Told, send: Send) -> Told | None:
    """Send the notice that was left unsent. Returns what is known then."""
    return told if told.unsent is None else sent(told, send(replace(told.unsent, is_repeated=True)))


def next_notice(
    subject: str,
    told: Told | None,
    status: Status,
    text: str,
    *,
    now_seconds: float,
    is_certain: bool = True,
    policies: Policies | None = None,
    run: str = "",
    reminder_seconds: float = REMINDER_SECONDS,
) -> tuple[Told | None, Notice | None]:
    """Decide whether a look at a subject causes a notice. Returns what people know then, None if it is OK; and the notice,
    which is unsent.

    `is_certain`: False for a transient error, such as a storage that does not answer. It causes a notice if two consecutive
    looks find it. `policies`: of the subject; None if no configuration names it any more. `run`: of the notice.
    `reminder_seconds`: least time between two reminders.
    """
    team, owner = (policies.team, policies.owner) if policies else ("", "")
    if told is not None and (policies is None or (status is Status.OK and told.team)):
        # The people who know of the problem are told of its end.
        team, owner = told.team, told.owner
    before = told.status if told else Status.OK
    if status > before and not is_certain and (told is None or told.doubtful is None):
        doubted = told or Told(status=Status.OK, since_seconds=now_seconds, told_seconds=now_seconds)
        return replace(doubted, doubtful=status), None
    if status is not before:
        since = told.since_seconds if told else now_seconds
        after = Told(status=status, since_seconds=now_seconds, told_seconds=now_seconds)
    elif told is None or status is Status.OK:
        return (None if told is None else sent(replace(told, doubtful=None), told.unsent)), None
    elif now_seconds - told.told_seconds < reminder_seconds:
        return replace(told, doubtful=None), None
    else:
        since, after = told.since_seconds, replace(told, told_seconds=now_seconds, doubtful=None)
    notice = Notice(
        subject=subject,
        before=before,
        now=status,
        text=text,
        at_seconds=now_seconds,
        since_seconds=since,
        team=team,
        owner=owner,
        labels=dict(policies.labels) if policies else {},
        run=run,
    )
    return replace(after, team=team, owner=owner, unsent=notice), notice
