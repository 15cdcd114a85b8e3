"""Code that all verbs share: the ROOT argument, options, output, progress bars and error handling."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.base.durations import parse_duration
from statekeeper.statestore.base.errors import NotACheckpoint, StatekeeperError, UnsupportedEnvironment
from statekeeper.statestore.base.messages import CONFIGURATION_FILE, with_name, without_root
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.cli import tables
from statekeeper.statestore.cli.application import APPLICATION
from statekeeper.statestore.cli.group import AS_JSON, arguments_of, errors_as_json
from statekeeper.statestore.cli.suggestions import checkpoints_near
from statekeeper.statestore.cli.terminal import Terminal
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.maintenance.executors import MEMORY_BYTES, Executor
from statekeeper.statestore.maintenance.upkeep.snapshot import KEPT_BYTES
from statekeeper.statestore.maintenance.verbs.config import (
    MOST_MIB,
    Configuration,
    MirrorPolicy,
    Mode,
    Parent,
    Policies,
    Root,
    RunsOn,
    SinkTable,
    StateTable,
    bytes_of_mib,
    load,
    with_options_of,
)
from statekeeper.statestore.maintenance.verbs.contract import Maintainer, Run
from statekeeper.statestore.maintenance.verbs.report import as_object
from statekeeper.statestore.storage import Storage, StorageSpec, open_storage
from statekeeper.statestore.storage.query_metrics import Prices

FAILED = 1
FINDINGS = 3
PARTLY_DONE = 4
INTERRUPTED = 130

_MIB = 1024 * 1024

# Keys of click's context, which the verbs share.
_KEYS = ("is_shown", "root", "url", "name", "endpoint", "limits", "executor", "configured")
_IS_SHOWN, _ROOT, _URL, _NAME, _ENDPOINT, _LIMITS, _EXECUTOR, _CONFIGURED = (f"{__name__}.{key}" for key in _KEYS)

TALK = Terminal(stderr=True)
"""Prints messages and errors to stderr; stdout holds only the result."""


@dataclass(frozen=True)
class Output:
    """The format of a result: one JSON object on stdout, or tables."""

    as_json: bool
    collected: list[dict[str, Any]] | None = None
    """Receives the JSON object in place of stdout."""

    def show(self, result: dict[str, Any], for_people: Callable[[Console], None]) -> None:
        """Print a result."""
        result_has_begun()
        if self.as_json and self.collected is not None:
            self.collected.append(result)
        elif self.as_json:
            click.echo(tables.as_json(result))
        else:
            # A terminal wraps long lines; a file or a pipe gets each line whole.
            for_people(Terminal(soft_wrap=True))


def result_has_begun() -> None:
    """Remember that stdout holds a result: an error that follows adds no second JSON object."""
    click.get_current_context().meta[_IS_SHOWN] = True


def end_with_usage_error(ctx: click.Context, error: click.UsageError) -> NoReturn:
    """Print the message of a wrong command, and exit."""
    # It may quote names of the checkpoint, such as its stores.
    click.UsageError(printable(error.format_message()), error.ctx).show()
    body = {
        "code": "usage",
        "exit_code": error.exit_code,
        "message": error.format_message(),
        "path": None,
        "hint": None if error.ctx is None else f"run: {error.ctx.command_path} --help",
    }
    _print_as_json(ctx, body)
    ctx.exit(error.exit_code)


def end_with_error(ctx: click.Context, error: StatekeeperError | MemoryError | KeyboardInterrupt) -> NoReturn:
    """Print the message of an error, and exit with its exit code."""
    if isinstance(error, MemoryError):
        # Each decoder bounds its memory; the sum over all threads can still exceed the limit of the process.
        TALK.print(
            "out of memory: the command stopped early. Give it more memory or fewer --workers, then run it again"
        )
        ctx.exit(FAILED)
    if isinstance(error, KeyboardInterrupt):
        TALK.print("interrupted: finished steps are kept; run it again to continue")
        ctx.exit(INTERRUPTED)
    if isinstance(error, NotACheckpoint) and _ROOT in ctx.meta:
        error = _with_suggestions(error, ctx.meta[_ROOT])
    say(error)
    _print_as_json(ctx, error_object(error))
    ctx.exit(error.exit_code)


def _print_as_json(ctx: click.Context, error: dict[str, Any]) -> None:
    """Print an error on stdout, if JSON is requested and stdout holds no result yet."""
    if ctx.meta.get(AS_JSON) and not ctx.meta.get(_IS_SHOWN):
        click.echo(tables.as_json({"error": error}))


def _with_suggestions(error: StatekeeperError, spec: StorageSpec) -> StatekeeperError:
    near = checkpoints_near(spec)
    if not near:
        return error
    return NotACheckpoint(error.what, path=error.path, hint=f"did you mean {' or '.join(near[:3])}?")


def error_object(error: StatekeeperError) -> dict[str, Any]:
    """The error as a JSON object."""
    error.name_root(pasteable)
    return as_object(error)


def pasteable(text: str, ctx: click.Context | None = None) -> str:
    """The text with commands that can be pasted: with the root, the configuration and the endpoint of this command.

    `ctx`: of this command, which other threads do not know."""
    ctx = ctx or click.get_current_context(silent=True)
    if ctx is None or _NAME not in ctx.meta:
        return text
    if _URL in ctx.meta:
        # Findings, and errors about a store, have the URL of the root.
        text = without_root(text, ctx.meta[_URL])
    top, endpoint = ctx.find_root(), ctx.meta.get(_ENDPOINT)
    is_given = top.get_parameter_source("config") is ParameterSource.COMMANDLINE
    config = ["--config", str(top.params["config"])] if is_given else []
    return with_name(text, ctx.meta[_NAME], before=config, after=["--endpoint-url", endpoint] if endpoint else [])


def say(error: StatekeeperError, *, of: StorePath | None = None) -> None:
    """Print an error to stderr, with the store that it concerns."""
    # Not as markup: names from files may contain brackets.
    store = f"{of}: " if of else ""
    error.name_root(pasteable)
    TALK.print(Text.assemble((error.code, "red"), ": ", store, str(error)), soft_wrap=True)


def say_skipped(store: StorePath, skipped: Iterable[str]) -> None:
    """Print a warning for each snapshot that a restore skipped in favor of an older base."""
    for reason in dict.fromkeys(skipped):
        what = f"{reason}; an older base was used. Verify the checkpoint: statekeeper audit ROOT --deep"
        TALK.print(Text.assemble(("warning", "yellow"), ": ", f"{store}: {pasteable(what)}"), soft_wrap=True)


class Duration(click.ParamType[float]):
    """An option's value in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True)
class Opened:
    """The root that a verb works on: its storage, its policies, its configured mirror, tables of state and sinks, and
    prices."""

    storage: Storage
    policies: Policies
    mirror: MirrorPolicy | None = None
    _: KW_ONLY
    state_tables: tuple[StateTable, ...] = ()
    sinks: tuple[SinkTable, ...] = ()
    prices: Prices = field(default_factory=Prices)


def configuration_of(ctx: click.Context) -> Configuration:
    chosen: Path | None = ctx.find_root().params.get("config")
    if chosen is None:
        chosen = Path(CONFIGURATION_FILE)
        if not chosen.exists():
            return Configuration()
    return load(chosen)


def open_root(ctx: click.Context, name: str) -> Opened:
    """Open a root by its configured name, path or URL. Raises `click.BadParameter`, `BadConfiguration`."""
    root = configuration_of(ctx).find(name)
    ctx.meta[_CONFIGURED] = root
    ctx.meta[_ROOT] = spec = with_options(ctx, root.spec)
    name_root(ctx, name)
    opened = _opened(spec, root)
    ctx.meta[_URL] = opened.storage.url
    return opened


def name_root(ctx: click.Context, name: str) -> None:
    """Make the commands in messages name this root."""
    ctx.meta[_NAME] = name


def open_destination(ctx: click.Context, name: str) -> Opened:
    """Open the destination of a copy as `open_root`; see `with_options_of`."""
    root = configuration_of(ctx).find(name)
    return _opened(with_options(ctx, with_options_of(ctx.meta[_ROOT], root.spec)), root)


def with_options(ctx: click.Context, spec: StorageSpec) -> StorageSpec:
    """The spec of a root with the options of this command that belong to its URL."""
    spec = replace(spec, limits=replace(spec.limits, **ctx.meta.get(_LIMITS, {})))
    endpoint = ctx.meta.get(_ENDPOINT)
    if endpoint is None or "://" not in spec.url:
        return spec
    options = {name: option for name, option in spec.options if name != "endpoint_url"}
    return replace(spec, options=(*options.items(), ("endpoint_url", endpoint)))


def with_options_of_command(ctx: click.Context, given: Configuration) -> Configuration:
    """The configuration with the options of this command that belong to the URLs of its roots."""
    roots = {name: replace(one, spec=with_options(ctx, one.spec)) for name, one in given.roots.items()}
    parents = {name: replace(one, spec=with_options(ctx, one.spec)) for name, one in given.parents.items()}
    return replace(given, roots=roots, parents=parents)


def _opened(spec: StorageSpec, root: Root) -> Opened:
    try:
        storage = open_storage(spec, is_hurried=False)
        return Opened(
            storage,
            root.policies,
            root.mirror,
            state_tables=root.state_tables,
            sinks=root.sinks,
            prices=root.prices,
        )
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def complete_root(ctx: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    """Suggest configured names, or folders if no name fits: bash and zsh do not show both."""
    try:
        names = [name for name in configuration_of(ctx).roots if name.startswith(typed)]
    except StatekeeperError:
        names = []
    return [CompletionItem(name) for name in names] or [CompletionItem(typed, type="dir")]


def _output(ctx: click.Context, _: click.Parameter, value: str) -> Output:
    errors_as_json(ctx, wanted=value == "json")
    return Output(value == "json")


def _endpoint(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta[_ENDPOINT] = value


def _limit(ctx: click.Context, option: click.Parameter, value: int | None) -> None:
    if value is not None:
        name = str(option.name).removesuffix("_mib")
        ctx.meta.setdefault(_LIMITS, {})[f"{name}_bytes"] = bytes_of_mib(value)


def _limit_option(name: str, least_mib: int, of: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        f"--{name}-mib",
        type=click.IntRange(least_mib, MOST_MIB),
        is_eager=True,
        expose_value=False,
        callback=_limit,
        help=f"Largest {of} that is read or written, in MiB. Default: `limits` of ROOT in statekeeper.toml, or 64.",
    )


endpoint_option = click.option(
    "--endpoint-url",
    metavar="URL",
    is_eager=True,
    expose_value=False,
    callback=_endpoint,
    help="Endpoint of an S3-compatible object store, for example http://127.0.0.1:9000.",
)


def storage_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that belong to the URL of a root."""
    command = _limit_option("object", 64, "object that is held in memory as a whole, for example a commit")(command)
    command = _limit_option("record", 8, "value of a changelog, with its key,")(command)
    return endpoint_option(command)


def root_argument(command: Callable[..., None]) -> Callable[..., None]:
    """The argument ROOT, and the options that belong to its URL."""
    argument = click.argument("root", callback=lambda ctx, _, name: open_root(ctx, name), shell_complete=complete_root)
    return argument(storage_options(command))


output_option = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    # Before ROOT, whose errors are printed in this format, too.
    is_eager=True,
    callback=_output,
    help="Output format: tables or one JSON object.",
)


def mode_option(required: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option --mode. `required`: what the verb requires."""
    return click.option(
        "--mode",
        type=click.Choice([mode.value for mode in Mode]),
        help="Allowed changes: none (observe), new files only (snapshots), or new files and deletions (full). "
        f"{required} Default: the mode of ROOT in statekeeper.toml. Without such a mode, the default is full for a job "
        "on pipelines and observe for a native query.",
    )


class RenamedOption(click.Option):
    """An option whose second name is its former name, which still works for one release and is not in the help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and (self.opts[0], record[1])


def stopped_option(required: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option --confirm-stopped. `required`: when the verb requires it."""
    return click.option(
        "--confirm-stopped",
        "--i-stopped-it",
        "stopped",
        cls=RenamedOption,
        is_flag=True,
        help=f"Confirm that the query is stopped: its application has ended and nothing will restart it. {required}",
    )


stopped_for_copy_option = stopped_option(
    "Required only to copy one of the two newest batches of a native query in structure V1."
)


scratch_option = click.option(
    "--scratch",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: Path(tempfile.gettempdir()),
    show_default="the system's temporary directory",
    help="Directory on local disk for temporary files.",
)


def _executor(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta[_EXECUTOR] = value and RunsOn(value)


executor_option = click.option(
    "--executor",
    type=click.Choice([one.value for one in RunsOn]),
    is_eager=True,
    expose_value=False,
    callback=_executor,
    help="Where the work on each store runs: on this machine, or on a Spark cluster. For spark, either spark-submit has "
    "started this command, or this command starts the `submit` of [spark] in statekeeper.toml. On the cluster, --memory is "
    "that of each task of Spark, and temporary files are in the executors' local directories. Default: `executor` of ROOT "
    "in statekeeper.toml, or local.",
)

workers_option = click.option(
    "--workers",
    type=click.IntRange(1),
    default=WORKERS,
    show_default="the number of cores",
    help="Number of stores to process at the same time.",
)
memory_option = click.option(
    "--memory",
    "memory_bytes",
    type=click.IntRange(320),
    default=MEMORY_BYTES // _MIB,
    show_default=True,
    callback=lambda _, __, value: value * _MIB,
    help="Memory limit in MiB for all workers together.",
)
kept_tables_option = click.option(
    "--kept-tables",
    "kept_bytes",
    type=click.IntRange(0),
    default=KEPT_BYTES // _MIB,
    show_default=True,
    callback=lambda _, __, value: value * _MIB,
    help="Disk limit in MiB below --scratch for SST files of the newest snapshots, so that the next snapshot of a store "
    "does not fetch them again. Only for checkpoints that are not on a file system. 0 keeps none.",
)


def holder() -> str:
    """The host and process id that lease and history records name."""
    return f"{socket.gethostname()}:{os.getpid()}"


def this_process() -> Maintainer:
    """Return the maintainer of this process: the one in the click context's object, else one with the machine's clock."""
    injected = click.get_current_context().find_object(Maintainer)
    return injected or Maintainer(holder(), SystemClock(), RandomIds())


def run_of(
    root: Opened, *, mode: str | None = None, scratch: Path | None = None, only_plans: bool = False, **how: Any
) -> Run:
    """Return the run of this command on a root. `mode`: that of the root by default; `only_plans`: it needs no cluster;
    `how`: as in `Run`."""
    ctx = click.get_current_context()
    how.setdefault("cluster", None if only_plans else cluster(how.get("memory_bytes", MEMORY_BYTES)))
    return Run(
        storage=root.storage,
        policies=root.policies if mode is None else replace(root.policies, mode=Mode(mode)),
        by=this_process(),
        scratch=scratch or Path(tempfile.gettempdir()),
        open_other=lambda url: open_destination(ctx, url).storage,
        named=lambda text: pasteable(text, ctx),
        **how,
    )


def cluster(memory_bytes: int = MEMORY_BYTES) -> Executor | None:
    """Return what runs the tasks of this command on a cluster; None for this machine.

    Without a Spark session in this process, it starts the command again with spark-submit, and exits with its exit code.
    Raises `UnsupportedEnvironment`.
    """
    ctx = click.get_current_context()
    root: Root | None = ctx.meta.get(_CONFIGURED)
    if not _is_on_spark(ctx, root):
        return None
    from statekeeper.statestore.maintenance.executors.spark import connect

    _start_spark(ctx, root)
    return connect(memory_bytes=memory_bytes)


def runs_on_spark() -> bool:
    """Whether the tasks of this command run on a Spark cluster."""
    ctx = click.get_current_context()
    return _is_on_spark(ctx, ctx.meta.get(_CONFIGURED))


def start_spark_for(ctx: click.Context, names: Iterable[str]) -> None:
    """Start this command again with spark-submit if one of several roots needs it: before the first result. No names: all
    that are configured. Raises as `cluster`."""
    configuration, found = configuration_of(ctx), list[Root | Parent]()
    for name in names:
        with suppress(StatekeeperError):  # the verb tells it, with the results of the other roots
            found.append(configuration.find(name))
    found = found or [*configuration.roots.values(), *configuration.parents.values()]
    first = next((one for one in found if _is_on_spark(ctx, one)), None)
    if first is not None:
        _start_spark(ctx, first)


def _is_on_spark(ctx: click.Context, root: Root | Parent | None) -> bool:
    """Whether a verb with the option --executor runs its tasks on a cluster. The option overrides the configuration."""
    if _EXECUTOR not in ctx.meta:
        return False
    configured = RunsOn.LOCAL if root is None else root.policies.executor
    return (ctx.meta[_EXECUTOR] or configured) is RunsOn.SPARK


def _start_spark(ctx: click.Context, root: Root | Parent | None) -> None:
    """Start this command again with spark-submit, and exit, unless this process has a Spark session."""
    from statekeeper.statestore.maintenance.executors import spark, submit

    if spark.has_session():
        return
    words = () if root is None else root.submit
    arguments = arguments_of(ctx)
    if not words or not submit.may_start():
        by_hand = submit.shown(["spark-submit", str(APPLICATION), *arguments])
        raise UnsupportedEnvironment(
            "the executor spark needs a Spark session, and this process has none; nothing was changed",
            hint=f'run: {by_hand}. Or let this command start Spark: write submit = ["spark-submit", "--master", '
            '"yarn"] in the table [spark] of statekeeper.toml',
        )
    command = submit.command_line(words, APPLICATION, arguments)
    TALK.print(f"starting Spark: {submit.shown(command)}", soft_wrap=True)
    ctx.exit(submit.run(command, APPLICATION))


def progress_bar(*, redirect_stdout: bool = True) -> Progress:
    """A progress bar on stderr; hidden when stderr is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=TALK,
        transient=True,
        disable=not TALK.is_terminal,
        redirect_stdout=redirect_stdout,
    )
