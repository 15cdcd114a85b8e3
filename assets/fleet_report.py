"""The asset `fleet_report`: one HTML page about the checkpoints of a place, and a message to each team."""

from collections.abc import Callable, Sequence

import dagster as dg

from statekeeper.assets.metadata import Metadata, bullets
from statekeeper.assets.names import Names
from statekeeper.resources.fleet import Fleet
from statekeeper.statestore.base.clock import SystemClock
from statekeeper.statestore.base.errors import StatekeeperError
from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.maintenance.copies.history_tables import day_of
from statekeeper.statestore.maintenance.verbs import history
from statekeeper.statestore.maintenance.verbs.config import Root
from statekeeper.statestore.maintenance.verbs.history import Destination
from statekeeper.statestore.maintenance.verbs.html_page import Section, page
from statekeeper.statestore.maintenance.verbs.overview import overview
from statekeeper.statestore.storage import open_storage

_MOST_PROBLEMS = 20
"""Problems of the configuration in the metadata."""
NEWEST = "report.html"
"""The name of the newest report. Each one also has a name with its day."""


def fleet_report(names: Names, health: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Make the asset `fleet_report` of a fleet."""

    @names.asset("fleet_report", deps=[health], does="adds-files", of_each_query=False)
    def made(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """Writes an HTML page about all queries to the folder of `[report]` in statekeeper.toml, and tells each team.

        The page is `report.html`, and the same page has a name with its day. It is one file without scripts: health,
        findings, restores, growth, costs, drills and changes. The checkpoints are only read. By hand:
        `statekeeper report --all`.
        """
        fleet = names.fleet_in(context)
        found, clock = fleet.discover(), SystemClock()
        roots = [one.root for one in found.queries.values()]
        # A query that could not be opened is on the page, too. It has no section if the file does not say what it is.
        roots += [
            root for name, root in found.configuration.roots.items() if name in found.problems.keys() - found.queries
        ]
        known = {root.name for root in roots}
        unknown = [f"{name}: {problem}" for name, problem in found.problems.items() if name not in known]
        places, _ = history.destinations(roots, of=lambda outputs: outputs.report)
        if not places:
            raise dg.Failure(
                f'{fleet.config_file} has no place for reports: add [report] and url = "s3://bucket/statekeeper-reports"'
            )
        shown: Metadata = {"queries": sum(len(place.roots) for place in places), "problems": len(found.problems)}
        if unknown:
            context.log.warning(printable(f"not on the page: {unknown[0]}"))
            shown["not_on_the_page"] = bullets(unknown[:_MOST_PROBLEMS])
        red = 0
        for number, place in enumerate(places, 1):
            sections = {root.name: _section(root, fleet) for root in place.roots}
            now = clock.now_seconds()
            body = page(list(sections.values()), now_seconds=now).encode()
            url = _written(place, body, f"report-{day_of(now)}.html")
            shown[f"report {number}"] = printable(url)
            red += sum(one.is_red for one in sections.values())
            for team in sorted({root.policies.team for root in place.roots}):
                of_team = [sections[root.name] for root in place.roots if root.policies.team == team]
                names.notifier_in(context).announce(
                    _sentence(of_team, url), found.configuration, team=team, fleet=names.fleet
                )
        return dg.MaterializeResult(metadata={**shown, "queries_that_need_action": red})

    return made


def _section(root: Root, fleet: Fleet) -> Section:
    """Look at a query. One that cannot be opened or read has its error as its section: it does not stop the others."""
    pasteable: Callable[[str], str] = str
    try:
        query = fleet.open(root.name)
        pasteable = query.pasteable
        found = overview(query.storage, query.policies, clock=SystemClock(), prices=query.prices)
    except StatekeeperError as error:
        error.name_root(pasteable)
        return Section(root.name, error)
    return Section(root.name, found.named(pasteable))


def _written(place: Destination, body: bytes, name: str) -> str:
    storage = open_storage(place.spec, is_hurried=False)
    storage.replace(name, body)
    storage.replace(NEWEST, body)
    return f"{storage.url.rstrip('/')}/{name}"


def _sentence(sections: Sequence[Section], url: str) -> str:
    """The message to a team: what needs action, and where the page is."""
    red = [one.name for one in sections if one.is_red]
    all_of_team = counted(len(sections), "query")
    if not red:
        return f"weekly report: none of {all_of_team} needs action. The page: {url}"
    more = f" and {len(red) - 5:,} more" if len(red) > 5 else ""
    return (
        f"weekly report: {len(red):,} of {all_of_team} must be looked at: {', '.join(red[:5])}{more}. The page: {url}"
    )
