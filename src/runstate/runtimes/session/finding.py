"""Which session to resume: ranked by what was observed around it and said in it, never by a clock.

First those that have seen the same commit, then the same branch, then by how many of the words stand in their title
and current outputs, then those that have come furthest by event index, then by id. The same log and the same question
always give the same list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from runstate.models.session import Projections, Session
from runstate.models.session.ids import NodeId, RunId, SessionId
from runstate.models.session.payloads import ObservationKind
from runstate.models.session.state import Node
from runstate.runtimes.session.results import Failed

_word = re.compile(r"\w+")


class Wanted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known about the session to be found. Nothing: all of them are wanted."""

    head_sha: str | None = None
    """A commit, or the beginning of one."""
    branch: str | None = None
    words: tuple[str, ...] = ()


class Found(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A session that has something of what is wanted."""

    session_id: SessionId
    title: str | None
    same_head: bool
    same_branch: bool
    words: list[str]
    """Those of the wanted words that stand in it, sorted."""
    last_event_index: int
    run_id: RunId | None
    """The run that was touched last."""
    tip: NodeId | None
    """Where to go on in it."""
    status: str


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has come to."""

    found: list[Found]
    unreadable: dict[SessionId, Failed]
    """Sessions that could not be looked into, and why: they may be the one that is wanted."""


def rank(sessions: Iterable[Session], wanted: Wanted) -> list[Found]:
    """The sessions that have something of what is wanted, the best first."""
    words = {word.casefold() for text in wanted.words for word in _word.findall(text)}
    anything = not (wanted.head_sha or wanted.branch or words)
    found = (_found(session, wanted, words) for session in sessions)
    return sorted((each for each in found if anything or each.same_head or each.same_branch or each.words), key=_place)


def _place(found: Found) -> tuple[bool, bool, int, int, str]:
    return not found.same_head, not found.same_branch, -len(found.words), -found.last_event_index, found.session_id


def _found(session: Session, wanted: Wanted, words: set[str]) -> Found:
    seen = Projections(session)
    run = seen.latest_run()
    return Found(
        session_id=session.session_id,
        title=session.title,
        same_head=bool(wanted.head_sha)
        and any(value.startswith(wanted.head_sha or "") for value in _observed(session, "git_head_sha")),
        same_branch=wanted.branch is not None and wanted.branch in _observed(session, "git_branch"),
        words=sorted(words & _said(session)) if words else [],
        last_event_index=session.last_event_index,
        run_id=run,
        tip=None if run is None else seen.preferred_tip(run),
        status="created" if run is None else seen.run_status(run),
    )


def _observed(session: Session, kind: ObservationKind) -> set[str]:
    owners: tuple[Session | Node, ...] = (session, *session.nodes.values())
    return {owner.observations[kind].value for owner in owners if kind in owner.observations}


def _said(session: Session) -> set[str]:
    current = (session.outputs[n.current_output_id].notes for n in session.nodes.values() if n.current_output_id)
    return {word.casefold() for text in (session.title or "", *current) for word in _word.findall(text)}
