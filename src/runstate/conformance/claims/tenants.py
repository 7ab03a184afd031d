"""Claims about the tenant of a stream: its first event sets it, and new events of another tenant are refused."""

from __future__ import annotations

from functools import partial

import pytest

from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import as_held, keys, note, stored
from runstate.conformance.threads import race
from runstate.errors import TenantMismatch
from runstate.logs.log import Capability, EventLog


class TenantClaims(LogKit):
    """A stream is one tenant's."""

    def test_events_of_another_tenant_are_refused_and_nothing_is_written(self, log: EventLog) -> None:
        log.append("s", [note("a", tenant="one")])
        for drafts in (["two"], ["one", "two"], ["", "two"]):
            with pytest.raises(TenantMismatch, match=r"'one'.*'two'"):
                log.append("s", [note(f"k{n}", tenant=tenant) for n, tenant in enumerate(drafts)])
        assert keys(stored(log, "s")) == ["a"]
        assert log.append("s", [note("b", tenant="one")])[0].seq == 2

    def test_an_event_without_a_tenant_is_accepted(self, log: EventLog) -> None:
        log.append("s", [note("a", tenant="one")])
        assert log.append("s", [note("b", tenant="")])[0].seq == 2
        assert list(log.verify()) == []

    def test_a_stream_that_was_begun_without_a_tenant_belongs_to_nobody(self, log: EventLog) -> None:
        """The events of contract v1 name none, and a run may go on with those of v2."""
        log.append("s", [note("a", tenant=""), note("b", tenant="one")])
        assert log.append("s", [note("c", tenant="two")])[0].seq == 3
        info = log.stream("s")
        assert info is not None
        assert info.tenant == ""
        assert list(log.verify()) == []

    def test_one_append_of_two_tenants_begins_no_stream(self, log: EventLog) -> None:
        with pytest.raises(TenantMismatch):
            log.append("s", [note("a", tenant="one"), note("b", tenant="two")])
        assert (log.stream("s"), log.streams()) == (None, [])

    def test_racing_first_appends_of_two_tenants_let_one_through(self, log: EventLog) -> None:
        sent = [note(f"{tenant}{number}", tenant=tenant) for number in range(6) for tenant in ("one", "two")]
        answers = race([partial(log.append, "s", [draft]) for draft in sent])
        owners = {record.tenant for record in stored(log, "s")}
        assert len(owners) == 1
        refused = {draft.tenant for draft, answer in zip(sent, answers, strict=True) if isinstance(answer, Exception)}
        assert {type(answer) for answer in answers if isinstance(answer, Exception)} == {TenantMismatch}
        assert (refused, len(stored(log, "s"))) == ({"one", "two"} - owners, 6)

    @needs(Capability.DELETE)
    def test_a_stream_that_was_deleted_may_begin_again_for_another_tenant(self, log: EventLog) -> None:
        log.append("s", [note("a", tenant="one")])
        log.delete_stream("s")
        log.append("s", [note("a", tenant="two")])
        with pytest.raises(TenantMismatch):
            log.append("s", [note("b", tenant="one")])
        assert log.append("s", [note("b", tenant="two")])[0].seq == 2

    @needs(Capability.ADOPT)
    def test_what_an_older_version_stored_is_adopted_and_answered(self, log: EventLog) -> None:
        log.adopt("s", as_held("s", [note("a", tenant="one"), note("b", tenant="two")]))
        (again,) = log.append("s", [note("b", tenant="two")])
        assert (again.seq, again.idempotent, again.mismatch) == (2, True, False)
        with pytest.raises(TenantMismatch):
            log.append("s", [note("c", tenant="two")])
