"""What every log promises, put together."""

from __future__ import annotations

import pytest

from runstate.conformance.claims.adoptions import AdoptionClaims
from runstate.conformance.claims.appends import AppendClaims
from runstate.conformance.claims.bulk import BulkClaims
from runstate.conformance.claims.collections import CollectionClaims
from runstate.conformance.claims.feeds import FeedClaims
from runstate.conformance.claims.keepings import BlobClaims, DeletionClaims, SnapshotClaims
from runstate.conformance.claims.keys import KeyClaims
from runstate.conformance.claims.models import ModelClaims
from runstate.conformance.claims.quarantines import QuarantineClaims
from runstate.conformance.claims.races import RaceClaims
from runstate.conformance.claims.reads import ReadClaims
from runstate.conformance.claims.refusals import RefusalClaims
from runstate.conformance.claims.snapshotting import SnapshottingClaims
from runstate.conformance.claims.submissions import SubmissionClaims
from runstate.conformance.claims.tenants import TenantClaims
from runstate.conformance.claims.tombstones import TombstoneClaims
from runstate.conformance.history import check_histories, how_default
from runstate.conformance.opener import Opener
from runstate.logs.log import Capability, EventLog

proved_by_a_class = frozenset({Capability.DURABLE, Capability.MULTI_PROCESS})
"""The capabilities that have a class of the kit to themselves. The others are proved, or refused, here."""


class LogConformance(
    AppendClaims,
    BulkClaims,
    SubmissionClaims,
    KeyClaims,
    ReadClaims,
    FeedClaims,
    SnapshotClaims,
    SnapshottingClaims,
    DeletionClaims,
    TombstoneClaims,
    AdoptionClaims,
    ModelClaims,
    TenantClaims,
    BlobClaims,
    CollectionClaims,
    RefusalClaims,
    QuarantineClaims,
    RaceClaims,
):
    """The tests that every log must pass. Give it the fixture `opener`."""

    histories = how_default
    """How many random histories are tried, and how long each is; `settings(how_default, max_examples=500)` for more."""

    def test_every_capability_that_is_declared_is_tested(self, log: EventLog) -> None:
        tested = {vars(kit)["proves"] for kit in type(self).__mro__ if "proves" in vars(kit)} - {None}
        assert tested == log.capabilities & proved_by_a_class, (
            "a log's test class inherits DurableLogConformance and MultiProcessLogConformance "
            "if, and only if, the log declares DURABLE and MULTI_PROCESS"
        )

    @pytest.mark.slow
    def test_any_history_agrees_with_a_dictionary_of_lists(self, opener: Opener) -> None:
        check_histories(opener, self.histories)
