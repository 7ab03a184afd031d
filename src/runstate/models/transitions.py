"""Checks events against a state before they are written: what a model says is impossible is refused."""

from __future__ import annotations

from collections.abc import Iterable
from time import gmtime, strftime

from runstate.errors import InvalidTransition
from runstate.models.model import AnyModel, Draft


def check_possible(model: AnyModel, state: object, seq: int, drafts: Iterable[tuple[int, Draft]]) -> None:
    """Check drafts one after the other, each against the state that the ones before it lead to.

    `state` is the stream's state at `seq`. Each draft comes with its index in the caller's batch.

    Raises:
        InvalidTransition: with the `index` of the draft.
    """
    for index, draft in drafts:
        seq += 1
        line = draft.render(seq, strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime()))
        for refusal in model.checked_refusals(state, model.decode(line)):
            error = InvalidTransition(f"{draft.type} is impossible: {refusal.why}; nothing was written")
            error.details |= {n: v for n, v in refusal.details.items() if n not in ("runSeq", "persistedAt")}
            error.details |= {"refusal": refusal.code, "index": index}
            raise error
        state = model.fold(state, [line])
