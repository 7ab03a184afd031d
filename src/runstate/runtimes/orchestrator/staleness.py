"""What has changed since the trail was written: it and all that depends on it is put on record, and nothing else."""

from __future__ import annotations

from runstate.runtimes.orchestrator.artifacts import downstream, newest_items, sha256_of
from runstate.runtimes.orchestrator.context import Context


def refresh(context: Context, forced: set[str]) -> None:
    """Compare the files with the index, by their bytes.

    A source or an artifact that was changed is taken as it is now, and everything made from it becomes stale; one that
    is gone becomes stale itself. So does what was made from the outputs of the forced nodes.
    """
    changed = [*_changed_sources(context), *_changed_artifacts(context), *_outputs_of(context, forced)]
    for name, cause in downstream(context.state, changed).items():
        if not context.state.artifacts_index[name].stale:
            context.emit("ARTIFACT_STALED", {"name": name, "because": cause})


def _changed_sources(context: Context) -> list[str]:
    changed = []
    for name, path in sorted(context.graph.sources.items()):
        known = context.state.artifacts_index.get(name)
        sha256 = sha256_of(path)
        if known is None or known.sha256 != sha256:
            changed.append(name)
            context.emit("ARTIFACT_WRITTEN", {"name": name, "path": str(path), "sha256": sha256 or ""})
    return changed


def _changed_artifacts(context: Context) -> list[str]:
    newest = newest_items(context.state).values()
    # What an unfinished item has left on disk is not a change by somebody else: the item runs again anyway.
    under_way = {output for item in newest if item.status != "finished" for output in item.outputs}
    changed = []
    for name, artifact in sorted(context.state.artifacts_index.items()):
        if name in context.graph.sources or artifact.stale or name in under_way:
            continue
        sha256 = sha256_of(context.files.path(name))
        if sha256 is None:
            changed.append(name)
            context.emit("ARTIFACT_STALED", {"name": name, "because": "the file is gone"})
        elif sha256 != artifact.sha256:
            changed.append(name)
            edited = {"name": name, "path": artifact.path, "sha256": sha256, "schema_id": artifact.schema_id}
            context.emit("ARTIFACT_WRITTEN", edited)
    return changed


def _outputs_of(context: Context, forced: set[str]) -> list[str]:
    workers = {w.name for node in context.graph.nodes if node.name in forced for w in node.all_workers()}
    return [output for item in context.state.work_items if item.worker in workers for output in item.outputs]
