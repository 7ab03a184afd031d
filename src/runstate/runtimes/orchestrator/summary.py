"""What a person reads when a run has failed: what failed, why, what was done, and how to go on."""

from __future__ import annotations

from pathlib import Path

from runstate.models.rundir.state import RunDirectory


def failure_summary(state: RunDirectory, error: str) -> str:
    """A page of Markdown."""
    failed = [item for item in state.work_items if item.status == "failed"]
    finished = sum(item.status == "finished" for item in state.work_items)
    lines = [f"# The run {state.run_id} has failed", "", error, ""]
    if failed:
        lines += ["## Failed work items", ""]
        for item in failed:
            details = item.error if isinstance(item.error, dict) else {"message": str(item.error)}
            lines.append(f"- `{item.work_item_id}`: {details.get('code', '')} {details.get('message', '')}".rstrip())
            if trace := details.get("traceback"):
                lines += ["", "  ```", *(f"  {line}" for line in str(trace).split("\n")), "  ```", ""]
        lines.append("")
    still_open = [issue for issue in state.issues if issue.status == "OPEN"]
    if still_open:
        lines += ["## Open issues", ""]
        lines += [f"- {issue.severity}: {issue.message} ({issue.issue_id})" for issue in still_open]
        lines.append("")
    lines += [f"{finished} work items are finished and will not run again.", "", "Go on with `runstate resume`.", ""]
    return "\n".join(lines)


def write_failure_summary(directory: Path, state: RunDirectory, error: str) -> Path:
    path = directory / "failure.md"
    path.write_text(failure_summary(state, error))
    return path
