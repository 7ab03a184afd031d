"""Workflow engine runs: the events and the snapshot of the state store contracts v1 and v2."""

from runstate.models.engine.events import CanonicalEngineEvent, RunEventRecord, RunEventWrite
from runstate.models.engine.keys import idempotency_key, idempotency_key_v1
from runstate.models.engine.model import ENGINE, EngineModel
from runstate.models.engine.state import Attempt, RootCause, RunSnapshot, Step, StepError

__all__ = [
    "ENGINE",
    "Attempt",
    "CanonicalEngineEvent",
    "EngineModel",
    "RootCause",
    "RunEventRecord",
    "RunEventWrite",
    "RunSnapshot",
    "Step",
    "StepError",
    "idempotency_key",
    "idempotency_key_v1",
]
