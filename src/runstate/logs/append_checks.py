"""What a log would refuse, found out before anything is written: for appends to several streams at once.

Each stream's own append decides; but a refusal that can be foreseen should not come when half of the rest is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runstate.errors import InvalidTransition, ModelFailed, ModelMismatch, StreamDeleted, TenantMismatch
from runstate.logs.archived_streams import answer_from_archive
from runstate.logs.log import EventLog
from runstate.logs.planning import check_tenant
from runstate.logs.stream_models import check_model, shared_model
from runstate.models.model import Draft


def check_appendable(log: EventLog, stream: str, drafts: Sequence[Draft]) -> None:
    """
    Raises:
        ModelMismatch, TenantMismatch, StreamDeleted: as the append would, if the stream stays as it is.
    """
    info = log.stream(stream)
    if info is not None:
        check_model(stream, info.model, shared_model(stream, drafts))
    if log.tombstone(stream) is not None:
        answer_from_archive(log, stream, drafts)
        return
    tenant = drafts[0].tenant if info is None else info.tenant
    for draft in drafts:
        if draft.tenant not in ("", tenant) and log.find(stream, draft.key) is None:
            check_tenant(stream, tenant, draft)


@contextmanager
def index_in_batch(numbered: Sequence[tuple[int, Draft]]) -> Iterator[None]:
    """Turn the index of a refused draft within its stream into its index within the whole batch.

    An error that names no draft is about the stream, and gets the index of its first one.
    """
    try:
        yield
    except (InvalidTransition, ModelFailed, ModelMismatch, StreamDeleted, TenantMismatch) as error:
        error.details["index"] = numbered[error.details.get("index", 0)][0]
        raise
