"""RunSnapshot: what a run's events fold into, and its bytes.

The bytes are RFC 8785. `hash` is the SHA-256 of the bytes without it, so anyone can check a snapshot with
nothing but a JSON library.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from runstate.errors import InvalidJson
from runstate.models.canonical import digest, embed, undecodable


class StepError(msgspec.Struct, rename="camel", gc=False):
    """Why an attempt failed, as its producer said."""

    code: str
    message: str
    retryable: bool


class Attempt(msgspec.Struct, rename="camel", gc=False):
    """One logical attempt at a step."""

    logical_attempt_id: int
    engine_attempt_id: int
    status: str = "PENDING"
    started_at: str | None = None
    completed_at: str | None = None
    artifacts: list[Any] = []
    error: StepError | None = None
    artifact_refs: list[Any] = []
    skip_reason: str | None = None


A = TypeVar("A", bound=Attempt)


class Step(Attempt, kw_only=True, rename="camel", gc=False):
    """A step's newest attempt, and in `attempts` the earlier ones, oldest first."""

    step_id: str
    attempts: list[Attempt] = []


class RootCause(msgspec.Struct, rename="camel", gc=False):
    """Why a run failed: the step that failed, and the error."""

    error: StepError | None
    logical_attempt_id: int | None = None
    step_id: str | None = None


class RunSnapshot(msgspec.Struct, rename="camel"):
    """A run as its events tell it, up to and with `last_event_seq`."""

    run_id: str
    status: str = "PENDING"
    last_event_seq: int = 0
    steps: list[Step] = []
    artifacts: list[Any] = []
    started_at: str | None = None
    completed_at: str | None = None
    total_duration_ms: int | None = None
    inconsistent: bool = False
    artifact_refs: list[Any] = []
    engine_run_ref: Any = None
    root_cause: RootCause | None = None

    @property
    def hash(self) -> str:
        first, rest = _parts(self)
        return digest(first + b"," + rest)


def dump(state: RunSnapshot) -> bytes:
    """The snapshot's canonical JSON, `hash` among its members."""
    first, rest = _parts(state)
    return b'%b,"hash":"%b",%b' % (first, digest(first + b"," + rest).encode(), rest)


def load(data: bytes) -> RunSnapshot:
    """The snapshot that `dump` wrote. Whether its hash still fits is for `verify` to say."""
    try:
        return _decoder.decode(data)
    except undecodable as error:
        raise InvalidJson(f"Not a run's snapshot: {error}") from error


# RFC 8785 sorts the members, which puts `hash` after `engineRunRef`: two structs, one on either side of it,
# spare a second encoding of the whole.


class _BeforeHash(msgspec.Struct, rename="camel"):
    artifact_refs: list[Any]
    artifacts: list[Any]
    completed_at: str | None
    engine_run_ref: Any


class _AfterHash(msgspec.Struct, rename="camel"):
    inconsistent: bool
    last_event_seq: int
    root_cause: RootCause | None
    run_id: str
    started_at: str | None
    status: str
    steps: list[Any]
    total_duration_ms: int | None


def _parts(state: RunSnapshot) -> tuple[bytes, bytes]:
    """The canonical JSON up to where `hash` goes, and from there on."""
    before = _BeforeHash(
        embed(state.artifact_refs), embed(state.artifacts), state.completed_at, embed(state.engine_run_ref)
    )
    steps = [_with_canonical_artifacts(step) for step in state.steps]
    after = _AfterHash(
        state.inconsistent,
        state.last_event_seq,
        state.root_cause,
        state.run_id,
        state.started_at,
        state.status,
        steps,
        state.total_duration_ms,
    )
    return _encoder.encode(before)[:-1], _encoder.encode(after)[1:]


def _with_canonical_artifacts(step: Step) -> Step:
    if step.attempts:
        step = msgspec.structs.replace(step, attempts=[_embedded(old) for old in step.attempts])
    return _embedded(step)


def _embedded(attempt: A) -> A:
    if not attempt.artifacts and not attempt.artifact_refs:
        return attempt
    return msgspec.structs.replace(
        attempt, artifacts=embed(attempt.artifacts), artifact_refs=embed(attempt.artifact_refs)
    )


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(RunSnapshot)
