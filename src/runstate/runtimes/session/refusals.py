"""What only sessions refuse: one class, one code, one sentence that says what to do."""

from __future__ import annotations

from runstate.errors import RunstateError


class InvalidRequest(RunstateError):
    """An argument is not of the type that it should be; nothing was looked at or written."""

    code = "request.invalid"


class InvalidToken(RunstateError):
    """The token was not made here, or not for this; ask for a new one by rehydrating, rewinding or importing."""

    code = "token.invalid"


class KeyringExposed(RunstateError):
    """Others can read the keyring, and so could make tokens."""

    code = "keyring.exposed"


class KeyringDamaged(RunstateError):
    """The file is no keyring; put it back, or move it away and all tokens made with it are void."""

    code = "keyring.damaged"


class InvalidWorkflow(RunstateError):
    """The workflow cannot be compiled."""

    code = "workflow.invalid"


class NodeNotFound(RunstateError):
    """The session has no such node."""

    code = "session.node_not_found"


class InvalidStep(RunstateError):
    """The workflow does not lead there from the step that the node is at."""

    code = "session.invalid_step"


class CapabilityLocked(RunstateError):
    """The next step needs a capability that nothing strong enough has shown; probe it and report what came of it."""

    code = "session.capability_locked"


class InvalidSnapshot(RunstateError):
    """The node's snapshot is none that this version of Runstate reads."""

    code = "snapshot.invalid"


class SnapshotOfAnotherWorkflow(RunstateError):
    """The snapshot belongs to another workflow than the run is pinned to."""

    code = "snapshot.other_workflow"


class InvalidBundle(RunstateError):
    """The bundle is not what an export wrote; nothing was imported."""

    code = "bundle.invalid"


class BundleTooNew(RunstateError):
    """A newer Runstate wrote this bundle; upgrade Runstate to import it. Nothing was imported."""

    code = "bundle.too_new"
