"""What has changed since the trail was written: it and all that depends on it is put on record, and nothing else.

What depends on a change is marked stale before the change itself is taken note of: if the orchestrator dies in between,
the next one finds the same change again.
"""

from __future__ import annotations

from collections.abc import Iterable

from runstate.runtimes.orchestrator.artifacts import downstream, sha256_of
from runstate.runtimes.orchestrator.context import Context

_gone = "the file is gone"


def refresh(context: Context, forced: set[str]) -> None:
    """Compare the files with the index, by their bytes.

    A source or an artifact that was changed is taken as it is now, and everything made from it becomes stale; one that
    is gone becomes stale itself. So does what the forced nodes have made.
    """
    changed = {**_changed_sources(context), **_changed_artifacts(context)}
    remade = _outputs_of(context, forced)
    invalidate(context, [*changed, *remade])
    for name in remade:
        _stale(context, name, "forced")
    for name, sha256 in changed.items():
        known = context.state.artifacts_index.get(name)
        if known is not None and known.stale and name not in context.graph.sources:
            continue  # It is made again anyway.
        if sha256 is None:
            _stale(context, name, _gone)
            continue
        path = context.graph.sources.get(name) or context.files.relative_path(name)
        schema_id = None if known is None else known.schema_id
        context.emit("ARTIFACT_WRITTEN", {"name": name, "path": str(path), "sha256": sha256, "schema_id": schema_id})


def invalidate(context: Context, changed: Iterable[str], *, sparing: Iterable[str] = ()) -> None:
    """Mark everything that was made from these artifacts as stale."""
    for name, cause in downstream(context.state, changed).items():
        if name not in sparing:
            _stale(context, name, cause)


def _stale(context: Context, name: str, because: str) -> None:
    known = context.state.artifacts_index.get(name)
    if known is not None and not known.stale:
        context.emit("ARTIFACT_STALED", {"name": name, "because": because})


def _changed_sources(context: Context) -> dict[str, str | None]:
    changed = {}
    for name, path in sorted(context.graph.sources.items()):
        known = context.state.artifacts_index.get(name)
        sha256 = sha256_of(path)
        if known is None or known.stale or known.sha256 != sha256:
            changed[name] = sha256
    return changed


def _changed_artifacts(context: Context) -> dict[str, str | None]:
    # What an interrupted item has left on disk is not a change by somebody else: the item runs again anyway.
    under_way = {output for item in context.state.work_items if item.status == "running" for output in item.outputs}
    changed = {}
    for name, artifact in sorted(context.state.artifacts_index.items()):
        if name in context.graph.sources or artifact.stale or name in under_way:
            continue
        sha256 = sha256_of(context.files.path(name))
        if sha256 != artifact.sha256:
            changed[name] = sha256
    return changed


def _outputs_of(context: Context, forced: set[str]) -> list[str]:
    """What the forced nodes have made, without what the fixes of their loops have rewritten."""
    nodes = [node for node in context.graph.nodes if node.name in forced]
    workers = {w.name for node in nodes for w in (*node.workers, *([node.loop.validate] if node.loop else []))}
    return [output for item in context.state.work_items if item.worker in workers for output in item.outputs]
