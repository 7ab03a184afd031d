"""A compiled workflow: steps, and which may follow which. A run is pinned to its bytes.

The RFC 8785 bytes of a workflow are a blob of the log, and `workflowHash` is that blob's reference. So a run is always
executed against the very workflow that it was started with, however the file it was compiled from has changed since.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from runstate.errors import InvalidJson
from runstate.logs.log import BlobRef, EventLog
from runstate.models.canonical import canonical, digest, parse
from runstate.models.session.ids import StepId, WorkflowHash, WorkflowId
from runstate.models.session.payloads import Capability
from runstate.models.session.plain import plain
from runstate.runtimes.session.refusals import InvalidWorkflow


class Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """One thing to do."""

    id: StepId
    title: Annotated[str, Meta(min_length=1, max_length=200)]
    prompt: Annotated[str, Meta(max_length=16 * 1024)] = ""
    requires: Annotated[tuple[Capability, ...], Meta(max_length=16)] = ()
    """What must have been shown, by strong evidence, before this step may be entered."""
    next: Annotated[tuple[StepId, ...], Meta(max_length=64)] = ()
    """What may follow. None: the workflow ends here. Several: whoever advances says which."""
    visits_max: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """How often one line of a run may come here: a loop has a bound."""


class Workflow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A compiled workflow. It begins with its first step."""

    schema_version: Annotated[int, Meta(ge=1, le=1)] = 1
    workflow_id: WorkflowId
    steps: Annotated[tuple[Step, ...], Meta(min_length=1, max_length=1000)]

    def step(self, step_id: str) -> Step | None:
        return next((step for step in self.steps if step.id == step_id), None)

    def to_bytes(self) -> bytes:
        return canonical(msgspec.to_builtins(self))

    @property
    def hash(self) -> WorkflowHash:
        return WorkflowHash(f"sha256:{digest(self.to_bytes())}")


def linear(workflow_id: str, *titles: str) -> Workflow:
    """A workflow whose steps follow each other: `linear("review", "Read", "Judge", "Write it down")`.

    Raises:
        InvalidWorkflow: what is wrong with it.
    """
    ids = [f"step-{number}" for number in range(1, len(titles) + 1)]
    steps = [
        {"id": step_id, "title": title, "next": ids[at + 1 : at + 2]}
        for at, (step_id, title) in enumerate(zip(ids, titles, strict=True))
    ]
    return compiled({"workflowId": workflow_id, "steps": steps})


def checked(workflow: Workflow) -> Workflow:
    """The same workflow, read as if it had come from outside: a struct may have been filled with anything.

    Raises:
        InvalidWorkflow: what is wrong with it, and where.
    """
    try:
        return compiled(plain(workflow))
    except InvalidJson as error:
        raise InvalidWorkflow(f"The workflow is refused: {error}") from error


def compiled(source: object) -> Workflow:
    """A workflow from its JSON, checked as a whole.

    Raises:
        InvalidWorkflow: what is wrong with it, and where.
    """
    try:
        workflow = msgspec.convert(source, Workflow)
    except msgspec.ValidationError as error:
        raise InvalidWorkflow(f"The workflow is refused: {error}") from error
    known = {step.id for step in workflow.steps}
    if len(known) < len(workflow.steps):
        raise InvalidWorkflow("The workflow is refused: two of its steps have one id")
    for step in workflow.steps:
        for follower in step.next:
            if follower not in known:
                raise InvalidWorkflow(f"The workflow is refused: {step.id!r} leads to {follower!r}, which is no step")
    if workflow.steps[0].requires:
        raise InvalidWorkflow("The workflow is refused: its first step requires what no step before it can have shown")
    return workflow


def read_workflow(data: bytes) -> Workflow:
    """The workflow in a blob.

    Raises:
        InvalidWorkflow, InvalidJson: it is none.
    """
    workflow = compiled(parse(data))
    if workflow.to_bytes() != data:
        raise InvalidWorkflow(
            "The workflow is refused: its bytes are not the canonical ones, so its hash is not its own"
        )
    return workflow


def load_workflow(log: EventLog, workflow_hash: WorkflowHash) -> Workflow:
    """The workflow that a run is pinned to.

    Raises:
        BlobNotFound, LogDamaged, InvalidWorkflow: it is not there as it was put.
    """
    return read_workflow(log.get_blob(BlobRef(workflow_hash)))
