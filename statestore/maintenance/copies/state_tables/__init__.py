"""Tables of state: the state of one operator as a Delta table, which a run brings to the newest batch from the changelogs.

    gather  ->  TableFacts  ->  plan  ->  TablePlan  ->  execute  ->  one commit of the table

The root is only read. Here belong the rows and columns of such a table, and its log. The verb is in `verbs.publish`.
"""

from statekeeper.statestore.maintenance.copies.state_tables.execute import Progress, Published, execute
from statekeeper.statestore.maintenance.copies.state_tables.gather import TableFacts, gather, with_chains
from statekeeper.statestore.maintenance.copies.state_tables.model import Request, Way
from statekeeper.statestore.maintenance.copies.state_tables.plan import TablePlan, plan

__all__ = [
    "Progress",
    "Published",
    "Request",
    "TableFacts",
    "TablePlan",
    "Way",
    "execute",
    "gather",
    "plan",
    "with_chains",
]
