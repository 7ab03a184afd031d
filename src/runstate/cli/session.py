"""session: look at sessions, go back in them, carry them to another machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from runstate.cli import collection, integrity, session_tree
from runstate.cli.options import AsJson, Limit, Url
from runstate.cli.output import words, write_json, write_line
from runstate.cli.progress_display import track
from runstate.cli.tables import write_table
from runstate.errors import StreamNotFound
from runstate.logs.log import EventLog
from runstate.logs.registry import open_log
from runstate.models.session import SESSION, Projections, Session, ids
from runstate.models.session.ids import NodeId, SessionId
from runstate.runtimes.session import Keyring, Place, Sessions, Wanted, open_sessions, unwrap
from runstate.runtimes.session.bundles import bundle_bytes_max
from runstate.runtimes.session.checking import findings
from runstate.runtimes.session.refusals import InvalidBundle, NodeNotFound
from runstate.storage.disk import RealDisk, write_new
from runstate.store import Store

app = typer.Typer(
    name="session", help="Sessions: list, show, go back, fork, and move them as bundles.", no_args_is_help=True
)

SessionName = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.", show_default=False)]
NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="The node's id, or the beginning of it.", show_default=False)
]
KeyringPath = Annotated[
    Path,
    typer.Option(
        "--keyring", envvar="RUNSTATE_KEYRING", help="The file with the keys that sign tokens on this machine."
    ),
]
keyring_default = Path("~/.config/runstate/keyring.json")


@app.command("list")
def list_(
    url: Url,
    head: Annotated[str | None, typer.Option("--head", help="First those that have seen this commit.")] = None,
    branch: Annotated[str | None, typer.Option("--branch", help="Then those that have seen this branch.")] = None,
    word: Annotated[
        list[str] | None, typer.Option("--word", help="Then by how many of these words stand in them. May be repeated.")
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List sessions to resume, the best match first, else those that have come furthest."""
    with _sessions(url, keyring_default) as sessions:
        search = unwrap(sessions.find(Wanted(head_sha=head, branch=branch, words=tuple(word or ())), limit=limit))
    if as_json:
        for found in search.found:
            write_json(found)
    else:
        columns = ("session", "title", "status", "events", "tip", "matches")
        write_table(
            columns,
            (
                (
                    f.session_id,
                    f.title or "",
                    f.status,
                    f.last_event_index + 1,
                    f.tip,
                    " ".join(["head"] * f.same_head + ["branch"] * f.same_branch + f.words),
                )
                for f in search.found
            ),
        )
    for name, failed in search.unreadable.items():
        words.print(f"{name}: not looked into: [{failed.code}] {failed.message}")
    raise typer.Exit(1 if search.unreadable else 0)


@app.command("show")
def show(url: Url, session: SessionName, as_json: AsJson = False) -> None:
    """Show a session: its runs, where to go on in them, what was said last, what is missing."""
    with open_log(url, create=False) as log:
        state = _state(log, session)
    seen = Projections(state)
    if as_json:
        write_json(
            {
                "sessionId": state.session_id,
                "title": state.title,
                "events": state.last_event_index + 1,
                "inconsistent": state.inconsistent,
                "observations": state.observations,
                "runs": {run: _run(seen, run) for run in state.runs},
                "openGaps": {gap: state.gaps[gap] for gap in seen.open_gaps()},
                "divergences": state.divergences,
            }
        )
        return
    words.print(f"{state.session_id}: {state.title or 'no title'}, {state.last_event_index + 1} events")
    runs = [(run, _run(seen, run)) for run in state.runs]
    write_table(
        ("run", "workflow", "status", "nodes", "leaves", "preferred tip", "says"),
        (
            (n, r["workflowId"], r["status"], r["nodes"], r["leaves"], r["tip"], _first_line(r["output"]))
            for n, r in runs
        ),
    )
    gaps = [(name, state.gaps[name]) for name in seen.open_gaps()]
    if gaps:
        columns = ("open gap", "severity", "reason", "node", "summary")
        write_table(columns, ((name, g.severity, g.reason, g.node_id, g.summary) for name, g in gaps))


@app.command("tree")
def tree(
    url: Url,
    session: SessionName,
    run: Annotated[str | None, typer.Option("--run", help="One run alone. Default: all.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Lines of nodes, those touched last.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Draw the runs of a session with their forks. Straight stretches of nodes are drawn as one line."""
    with open_log(url, create=False) as log:
        state = _state(log, session)
        seen = Projections(state)
        for name in state.runs if run is None else [ids.run_id(run)]:
            if name not in state.runs:
                raise NodeNotFound(f"There is no run {name!r} in the session {session!r}", run_id=name)
            if as_json:
                session_tree.write_nodes(seen, name)
            else:
                session_tree.draw(log, seen, name, limit)


@app.command("fork")
def fork(
    url: Url,
    session: SessionName,
    node: NodeName,
    attempt: Annotated[
        str | None, typer.Option("--attempt", help="An id of this attempt: the same one never forks twice.")
    ] = None,
    keyring: KeyringPath = keyring_default,
    as_json: AsJson = False,
) -> None:
    """Begin another line at any node, and print the tokens to go on there."""
    with _sessions(url, keyring) as sessions:
        at = _node(_state(sessions.log, session), node)
        _write_place(unwrap(sessions.fork(session, at, attempt_id=attempt)), as_json)


@app.command("rewind")
def rewind(
    url: Url, session: SessionName, node: NodeName, keyring: KeyringPath = keyring_default, as_json: AsJson = False
) -> None:
    """Print tokens for a new attempt at any node. Writes nothing: the next advance from there forks."""
    with _sessions(url, keyring) as sessions:
        at = _node(_state(sessions.log, session), node)
        _write_place(unwrap(sessions.rewind(session, at)), as_json)


@app.command("export")
def export(
    url: Url,
    session: SessionName,
    file: Annotated[Path | None, typer.Argument(help="Default: standard output.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Write a whole session as one bundle, to be imported elsewhere. A file that is there is not overwritten."""
    with _sessions(url, keyring_default) as sessions:
        bundle = unwrap(sessions.export(session))
    if file is None:
        write_line(bundle.rstrip(b"\n"))
        return
    try:
        write_new(RealDisk(), file, bundle)
    except FileExistsError as error:
        raise typer.BadParameter(f"{file} is there already; it was left as it is") from error
    if as_json:
        write_json({"sessionId": session, "file": str(file), "bytes": len(bundle)})
    words.print(f"{len(bundle)} bytes; on the other machine: runstate session import URL {file.name}")


@app.command("import")
def import_(
    url: Url,
    file: Annotated[Path | None, typer.Argument(help="Default: standard input.", show_default=False)] = None,
    keyring: KeyringPath = keyring_default,
    as_json: AsJson = False,
) -> None:
    """Take a session over from a bundle, whole or not at all, and print tokens to go on with it here."""
    bundle = _read(file)
    with open_sessions(url, keyring.expanduser()) as sessions:
        imported = unwrap(sessions.import_(bundle))
    if as_json:
        write_json(imported)
        return
    renamed = imported.session_id != imported.imported_from
    words.print(
        f"{imported.session_id}: {imported.events} events, {imported.events_digest}"
        + (f"; there was a session {imported.imported_from} already" if renamed else "")
    )
    for place in imported.tips:
        _write_place(place, as_json)


@app.command("rotate")
def rotate(keyring: KeyringPath = keyring_default) -> None:
    """Sign tokens with a new key from now on. Those of the key before it stay good until the next rotation."""
    path = keyring.expanduser()
    Keyring(path).rotate()
    words.print(f"a new key signs tokens: {path}")


@app.command("gc")
def gc(
    url: Url,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing; only say what would be.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete snapshots and other blobs that no session refers to, as 'runstate gc' does."""
    collection.gc(url, None, dry_run, as_json)


@app.command("verify")
def verify(
    url: Url,
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="One session; default: all.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for damage: in the log, and in what the nodes of sessions stand on. Exit code 1 when there is some."""
    damage = warnings = 0
    with open_log(url, create=False) as log:
        if session is not None and log.stream(session) is None:
            raise StreamNotFound(f"There is no session {session!r}", stream=session)
        names = [session] if session is not None else [head.stream for head in log.heads(versions=False)]
        found = [finding for name in track(names, "verifying") for finding in findings(log, SessionId(name))]
        found += [] if session is not None else [*log.verify_rest()]
    for finding in found:
        damage += finding.severity == "damage"
        warnings += finding.severity == "warning"
        integrity.write_finding(finding, as_json, url)
    words.print(f"{damage} damaged, {warnings} warnings" if damage or warnings else "intact")
    raise typer.Exit(1 if damage else 0)


@app.command("repair")
def repair(
    url: Url,
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="One session; default: all.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    salvage: integrity.Salvage = False,
    as_json: AsJson = False,
    quarantine: integrity.Quarantine = None,
) -> None:
    """Make damaged sessions usable again: intact events stay, damaged files are set aside, snapshots are rebuilt."""
    integrity.repair(url, session, dry_run, salvage, SESSION.name, as_json, quarantine)


def _sessions(url: str, keyring: Path) -> Sessions:
    return open_sessions(url, keyring.expanduser(), create=False)


def _state(log: EventLog, session: str) -> Session:
    """
    Raises:
        StreamNotFound: there is no such session.
    """
    name = ids.session_id(session)
    if log.stream(name) is None:
        raise StreamNotFound(f"There is no session {session!r}", stream=session)
    return Store(log, SESSION, snapshot_every=0).current_state(name)


def _node(state: Session, given: str) -> NodeId:
    """
    Raises:
        NodeNotFound: no node's id is that, or begins so, or several do.
    """
    if given in state.nodes:
        return NodeId(given)
    fitting = [name for name in state.nodes if name.startswith(given)]
    if len(fitting) != 1:
        many = f"{len(fitting)} nodes begin with {given!r}" if fitting else f"There is no node {given!r}"
        raise NodeNotFound(f"{many} in the session {state.session_id!r}", node_id=given)
    return fitting[0]


def _run(seen: Projections, run: ids.RunId) -> dict[str, object]:
    tip, pinned = seen.preferred_tip(run), seen.state.runs[run]
    output = None if tip is None else seen.current_output(tip)
    return {
        "workflowId": pinned.workflow_id,
        "workflowHash": pinned.workflow_hash,
        "status": seen.run_status(run),
        "nodes": len(seen.dag(run).nodes),
        "leaves": len(seen.leaves(run)),
        "tip": tip,
        "output": None if output is None else seen.state.outputs[output].notes,
        "preferences": msgspec.to_builtins(seen.effective_preferences(tip)),
    }


def _first_line(notes: object) -> str:
    return str(notes).partition("\n")[0][:60] if notes else ""


def _read(file: Path | None) -> bytes:
    """
    Raises:
        InvalidBundle: it is larger than any bundle.
    """
    if file is None:
        data = sys.stdin.buffer.read(bundle_bytes_max + 1)
    else:
        with file.open("rb") as source:
            data = source.read(bundle_bytes_max + 1)
    if len(data) > bundle_bytes_max:
        raise InvalidBundle(f"The bundle has more than {bundle_bytes_max} bytes", reason="size")
    return data


def _write_place(place: Place, as_json: bool) -> None:
    if as_json:
        write_json(place)
        return
    step = "the workflow has ended here" if place.step is None else f"at {place.step.id}: {place.step.title}"
    words.print(f"{place.run_id}, {place.node_id}, {step}")
    write_table(("token", ""), (("state", place.state_token), ("ack", place.ack_token)))
