"""What a person reads when a run has failed: what failed, why, what was done, and how to go on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from runstate.models.rundir.state import RunDirectory, WorkItem
from runstate.runtimes.orchestrator.artifacts import newest_items
from runstate.storage.disk import RealDisk, replace_durably

_name = "failure.md"
_title = "# The run "


def failure_summary(state: RunDirectory, error: str) -> str:
    """A page of Markdown."""
    failed = [item for item in newest_items(state).values() if item.status == "failed"]
    finished = sum(item.status == "finished" for item in newest_items(state).values())
    lines = [f"{_title}{state.run_id} has failed", "", error, ""]
    if failed:
        lines += ["## Failed work items", "", *(line for item in failed for line in _told(item)), ""]
    still_open = [issue for issue in state.issues if issue.status == "OPEN"]
    if still_open:
        lines += ["## Open issues", ""]
        lines += [f"- {issue.severity}: {_one_line(issue.message)} ({issue.issue_id})" for issue in still_open]
        lines.append("")
    lines += [
        f"{finished} work items are finished and will not run again.",
        "",
        f"Go on with `runstate resume {state.run_id}`.",
        "",
    ]
    return "\n".join(lines)


def _told(item: WorkItem) -> list[str]:
    details = item.error if isinstance(item.error, dict) else {"message": str(item.error)}
    reason = _one_line(f"{details.get('code', '')} {details.get('message', '')}")
    lines = [f"- `{item.work_item_id}`: {reason}"]
    if trace := details.get("traceback"):
        lines += ["", "  ```", *(f"  {line}".rstrip() for line in str(trace).strip().split("\n")), "  ```", ""]
    return lines


def _one_line(text: str) -> str:
    return " ".join(text.split())


def write_failure_summary(directory: Path, state: RunDirectory, error: str) -> None:
    """Write `failure.md`. The trail has it all; a disk that refuses this page is not what the run has failed of."""
    with suppress(OSError):
        replace_durably(RealDisk(), directory / _name, failure_summary(state, error).encode("utf-8", "replace"))


def drop_failure_summary(directory: Path) -> None:
    """Remove `failure.md`, unless somebody else wrote it."""
    path = directory / _name
    with suppress(OSError):
        if path.read_bytes().startswith(_title.encode()):
            path.unlink()
