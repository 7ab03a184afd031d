"""What a worker is given: its inputs, a place for its outputs, and nothing else that it should depend on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from runstate.errors import RunstateError
from runstate.models.canonical import check_value
from runstate.models.rundir.events import Issue
from runstate.storage.directories import make_directories
from runstate.storage.disk import RealDisk, write_private

_issue_bytes_max = 1 << 16

Severity = Literal["blocker", "error", "warn", "info"]


class UndeclaredArtifact(RunstateError):
    """A worker reads or writes only what it has declared."""

    code = "artifact.undeclared"


class JobSpec(msgspec.Struct):
    """A job as it crosses from the orchestrator to the process that runs it."""

    work_item_id: str
    worker: str
    scope_key: str
    attempt: int
    inputs: dict[str, str]
    """The name of each input, and the path of its file."""
    outputs: dict[str, str]
    """The declared name of each output, and the artifact it becomes in this scope."""
    staging: str
    """The directory that the outputs are written to, before they become artifacts."""
    parameters: dict[str, Any] = {}
    issue: Issue | None = None


class JobResult(msgspec.Struct):
    """What came of a job."""

    status: Literal["finished", "failed"]
    error: dict[str, Any] | None = None
    issues: list[Issue] = []


class Job:
    """A worker's view of its work item."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self.reported: list[Issue] = []

    @property
    def scope_key(self) -> str:
        return self._spec.scope_key

    @property
    def attempt(self) -> int:
        return self._spec.attempt

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self._spec.parameters

    @property
    def issue_to_fix(self) -> Issue | None:
        """In the fix of a loop: the issue to fix."""
        return self._spec.issue

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs, sorted; those of all scopes where the declaration holds `{scope}`."""
        return sorted(self._spec.inputs)

    def read(self, name: str) -> bytes:
        """
        Raises:
            UndeclaredArtifact: it is none of the inputs.
        """
        path = self._spec.inputs.get(name.replace("{scope}", self.scope_key))
        if path is None:
            raise UndeclaredArtifact(f"{name!r} is no declared input of {self._spec.worker!r}")
        return Path(path).read_bytes()

    def read_json(self, name: str) -> Any:
        return msgspec.json.decode(self.read(name))

    def write(self, name: str, data: bytes | str) -> None:
        """Write an output, under its declared name. It becomes an artifact when the worker has returned.

        Raises:
            UndeclaredArtifact: it is none of the outputs.
        """
        artifact = self._spec.outputs.get(name)
        if artifact is None:
            raise UndeclaredArtifact(f"{name!r} is no declared output of {self._spec.worker!r}")
        path = Path(self._spec.staging, artifact)
        make_directories(RealDisk(), path.parent)
        write_private(path, data.encode() if isinstance(data, str) else data)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as JSON with sorted names, so that the same value gives the same bytes."""
        self.write(name, msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2) + b"\n")

    def report(
        self,
        issue_id: str,
        message: str,
        *,
        severity: Severity = "error",
        gate: str = "",
        error_code: str | None = None,
        files: list[str] | None = None,
        location: dict[str, Any] | None = None,
        suggested_fix: str | None = None,
    ) -> None:
        """Report an issue. The same `issue_id` is the same issue, however often it is reported.

        Without a `gate` it belongs to this work item: once the item runs and does not report it, it is resolved.

        Raises:
            ValueError, RunstateError: it is nothing that can be stored.
        """
        issue = Issue(issue_id, severity, message, gate, error_code, files or [], location, suggested_fix)
        stored = msgspec.to_builtins(issue)
        check_value(stored)
        if len(msgspec.json.encode(stored)) > _issue_bytes_max:
            raise ValueError(f"The issue {issue_id[:80]!r} has more than {_issue_bytes_max} bytes; report less")
        self.reported.append(msgspec.convert(stored, Issue))


class RunView:
    """What a function that gives scope keys may look at: parameters, and artifacts that are there already."""

    def __init__(self, parameters: Mapping[str, Any], paths: Mapping[str, Path]) -> None:
        self.parameters, self._paths = parameters, paths

    def artifacts(self) -> list[str]:
        return sorted(self._paths)

    def read(self, name: str) -> bytes:
        """
        Raises:
            UndeclaredArtifact: there is no such artifact yet, or it is stale.
        """
        if name not in self._paths:
            raise UndeclaredArtifact(f"There is no artifact {name!r} yet")
        return self._paths[name].read_bytes()

    def read_json(self, name: str) -> Any:
        return msgspec.json.decode(self.read(name))
