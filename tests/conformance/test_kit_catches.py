"""The kit's own test: logs with a bug planted in each, and the claim that must find it."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress

import msgspec
import pytest
from hypothesis import Phase, settings

from runstate.conformance import DurableLogConformance, LogConformance, Opener
from runstate.conformance.history import check_histories, how_default
from runstate.conformance.notes import note, numbered
from runstate.conformance.workers import check_stored
from runstate.conformance.writer import Task
from runstate.errors import LogFailed, RunstateError, SequenceConflict, TenantMismatch
from runstate.logs.blob_collection import Collected
from runstate.logs.blob_refs import blob_refs
from runstate.logs.bulk import Answer, Batch
from runstate.logs.log import (
    AppendResult,
    BlobRef,
    Capability,
    EventLog,
    FeedPage,
    Head,
    Position,
    Record,
    StoredSnapshot,
    StreamInfo,
    Tombstone,
    now,
)
from runstate.logs.memory import MemoryLog
from runstate.logs.planning import StreamPlan, check_tenant
from runstate.models.model import Draft

Results = Future[list[AppendResult]]
found = (AssertionError, pytest.fail.Exception, RunstateError)
"""How a test of the kit says no: a wrong answer, an error that did not come, an error that should not have come."""


class ForgetsKeys(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        self._keys[stream] = {}
        return super().append(stream, drafts, expected_seq=expected_seq)


class OverwritesOnMismatch(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        results = super().append(stream, drafts, expected_seq=expected_seq)
        for draft, result in zip(drafts, results, strict=True):
            if result.mismatch:
                records = self._streams[stream]
                body = draft.render(result.seq, result.persisted_at)
                records[result.seq - 1] = msgspec.structs.replace(records[result.seq - 1], body=body)
        return results


class HidesMismatch(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        results = super().append(stream, drafts, expected_seq=expected_seq)
        return [AppendResult(r.event_id, r.seq, r.persisted_at, r.idempotent, r.persisted) for r in results]


class AnswersWithTheNewEventId(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        results = super().append(stream, drafts, expected_seq=expected_seq)
        return [
            AppendResult(d.event_id, r.seq, r.persisted_at, r.idempotent, r.persisted, r.mismatch)
            for d, r in zip(drafts, results, strict=True)
        ]


class AppendsOneByOne(MemoryLog):
    """Half of a batch stays when the other half fails, and batches mix."""

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        return [super(AppendsOneByOne, self).append(stream, [draft])[0] for draft in drafts]


class ChecksSeqBeforeKeys(MemoryLog):
    """A retry of an append that went through is told of a conflict."""

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        actual = len(self._streams.get(stream, []))
        if expected_seq not in (None, actual):
            raise SequenceConflict(stream=stream, actual_seq=actual, expected_seq=expected_seq)
        return super().append(stream, drafts)


class ChecksSeqTooEarly(MemoryLog):
    """Between the check and the write, another thread writes."""

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        actual = len(self._streams.get(stream, []))
        if expected_seq not in (None, actual):
            raise SequenceConflict(stream=stream, actual_seq=actual, expected_seq=expected_seq)
        time.sleep(0.05)
        return super().append(stream, drafts)


class EscapesBodies(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        results = super().append(stream, drafts, expected_seq=expected_seq)
        records = self._streams.get(stream, [])
        for place, record in enumerate(records):
            body = record.body.decode().encode("ascii", "backslashreplace")
            records[place] = msgspec.structs.replace(record, body=body)
        return results


class ReadsNewestFirst(MemoryLog):
    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        return super().read(stream, after_seq=after_seq, limit=limit)[::-1]


class ReadsFromTheSeqOn(MemoryLog):
    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        return super().read(stream, after_seq=after_seq - 1, limit=limit)


class LosesTheEndOfAFullPage(MemoryLog):
    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        page = super().feed(after=after, limit=limit)
        return FeedPage(page.records[:-1], page.next) if len(page.records) == limit > 1 else page


class TakesPositionsBeforeCommit(MemoryLog):
    """The bug of every serial column: a lower position becomes visible after a higher one was handed out."""

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        with self._lock:
            self._last_position += 1000
            taken = self._last_position
        time.sleep(0.002 * (taken // 1000 % 2))
        results = super().append(stream, drafts, expected_seq=expected_seq)
        with self._lock:
            mine = {(stream, result.seq): taken + number for number, result in enumerate(results)}
            self._feed = sorted(
                ((mine.get((r.stream, r.seq), position), r) for position, r in self._feed), key=lambda entry: entry[0]
            )
        return results


class UsesPositionsAgain(MemoryLog):
    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        super().delete_stream(
            stream, expected_seq=expected_seq, first_persisted_at=first_persisted_at, tombstone=tombstone
        )
        self._last_position = self._feed[-1][0] if self._feed else 0


class TakesAnyPosition(MemoryLog):
    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        return super().feed(after=after if after is not None and after.isdecimal() else None, limit=limit)


class TakesSnapshotsBackwards(MemoryLog):
    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        self._snapshots.pop(stream, None)
        super().save_snapshot(stream, snapshot)


class SavesManyBackwards(MemoryLog):
    def save_snapshots(self, snapshots: Sequence[tuple[str, StoredSnapshot]]) -> None:
        for stream, snapshot in snapshots:
            if stream in self._streams:
                self._snapshots.get(stream, {}).pop(snapshot.model, None)
                self.save_snapshot(stream, snapshot)


class SavesNoneBecauseOneIsGone(MemoryLog):
    def save_snapshots(self, snapshots: Sequence[tuple[str, StoredSnapshot]]) -> None:
        if all(stream in self._streams for stream, _ in snapshots):
            for stream, snapshot in snapshots:
                self.save_snapshot(stream, snapshot)


class KeepsSnapshotsOfOldVersions(MemoryLog):
    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        old = self.load_snapshot(stream, snapshot.model)
        if old is None or snapshot.seq >= old.seq:
            super().save_snapshot(stream, snapshot)


class ForgetsToDeleteSnapshots(MemoryLog):
    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        kept = self._snapshots.get(stream, {})
        super().delete_stream(
            stream, expected_seq=expected_seq, first_persisted_at=first_persisted_at, tombstone=tombstone
        )
        self._snapshots[stream] = kept


class ForgetsToDeleteKeys(MemoryLog):
    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        kept = self._keys.get(stream, {})
        super().delete_stream(
            stream, expected_seq=expected_seq, first_persisted_at=first_persisted_at, tombstone=tombstone
        )
        self._keys[stream] = kept


class StopsAtTheFirstRefusal(MemoryLog):
    def append_many(self, batches: Sequence[Batch]) -> list[Answer]:
        return [self.append(stream, drafts) for stream, drafts in batches]


class AnswersByName(MemoryLog):
    def append_many(self, batches: Sequence[Batch]) -> list[Answer]:
        return [self.append(stream, drafts) for stream, drafts in sorted(batches, key=lambda batch: batch[0])]


def done(results: list[AppendResult]) -> Results:
    future: Results = Future()
    future.set_result(results)
    return future


class AnswersBeforeItStores(MemoryLog):
    """With what will probably be right."""

    def submit(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> Results:
        self.append("before", getattr(self, "_late", []))
        self._late = drafts
        return done([AppendResult(draft.event_id, seq, now()) for seq, draft in enumerate(drafts, 1)])


class FailsWhatIsSubmittedAfterARefusal(MemoryLog):
    """As a group does in which one refusal ends the transaction of all."""

    def submit(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> Results:
        future: Results = Future()
        try:
            if (refusal := getattr(self, "_refusal", None)) is not None:
                raise refusal
            future.set_result(self.append(stream, drafts, expected_seq=expected_seq))
        except RunstateError as error:
            self._refusal = error
            future.set_exception(error)
        return future


class ExpectsNothingOfWhatIsSubmitted(MemoryLog):
    def submit(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> Results:
        return done(self.append(stream, drafts))


class LosesEverySeventhSubmission(MemoryLog):
    def submit(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> Results:
        self._count = getattr(self, "_count", 0) + 1
        return done(self.append(stream, drafts) if self._count % 7 else [AppendResult("", 1, now())])


class LeavesFuturesOpenWhenClosed(MemoryLog):
    def submit(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> Results:
        return Future()


class AnswersSubmittedRetriesAsNew(MemoryLog):
    def submit(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> Results:
        results = self.append(stream, drafts, expected_seq=expected_seq)
        return done([AppendResult(result.event_id, result.seq, result.persisted_at) for result in results])


class StoresTwiceWhatIsSubmitted(MemoryLog):
    def submit(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> Results:
        results = self.append(stream, drafts, expected_seq=expected_seq)
        self._keys[stream] = {}
        self.append(stream, drafts)
        return done(results)


class DeletesWhateverCame(MemoryLog):
    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        super().delete_stream(stream, tombstone=tombstone)


class KeepsSnapshotsOfEarlierStreams(MemoryLog):
    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        super().save_snapshot(stream, msgspec.structs.replace(snapshot, first_persisted_at=""))


class ChecksSeqBeforeItDeletes(MemoryLog):
    """Between the check and the deletion, another thread appends."""

    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        info = self.stream(stream)
        if info is not None and expected_seq not in (None, info.last_seq):
            raise SequenceConflict(stream=stream, actual_seq=info.last_seq, expected_seq=expected_seq)
        time.sleep(0.001)
        super().delete_stream(stream, tombstone=tombstone)


class AdoptsUnderNewTimes(MemoryLog):
    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        return super().adopt(
            stream, [msgspec.structs.replace(record, persisted_at=now()) for record in records], model=model
        )


class AdoptsWhatIsBehindTheEnd(MemoryLog):
    """What should be there already is not looked at."""

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        info = self.stream(stream)
        return super().adopt(
            stream, [record for record in records if info is None or record.seq > info.last_seq], model=model
        )


class AdoptsOneByOne(MemoryLog):
    """What comes before a conflict stays."""

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        return sum(super(AdoptsOneByOne, self).adopt(stream, [record], model=model) for record in records)


class ForgetsAdoptedKeys(MemoryLog):
    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        adopted = super().adopt(stream, records, model=model)
        self._keys[stream] = {}
        return adopted


class ClosesGaps(MemoryLog):
    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        info = self.stream(stream)
        first = 1 if info is None else info.last_seq + 1
        return super().adopt(
            stream, [msgspec.structs.replace(r, seq=seq) for seq, r in enumerate(records, first)], model=model
        )


class HidesAdoptedFromTheFeed(MemoryLog):
    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        before = list(self._feed)
        adopted = super().adopt(stream, records, model=model)
        self._feed = before
        return adopted


class RecordsNoModel(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        return super().append(stream, [without_model(draft) for draft in drafts], expected_seq=expected_seq)


class AcceptsAnyModelLater(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        later = [without_model(draft) for draft in drafts] if self.stream(stream) else drafts
        return super().append(stream, later, expected_seq=expected_seq)


class TakesTheNewestModel(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        if stream in self._models and drafts:
            self._models[stream] = drafts[0].model
        return super().append(stream, drafts, expected_seq=expected_seq)


class ChecksTheModelOfNewKeysAlone(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        known = [without_model(draft) for draft in drafts if draft.key in self._keys.get(stream, {})]
        return super().append(stream, known if len(known) == len(drafts) else drafts, expected_seq=expected_seq)


class AdoptsWithoutTheModel(MemoryLog):
    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        return super().adopt(stream, records)


class KeepsTheModelOfADeletedStream(MemoryLog):
    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        self._kept = self._models.get(stream, "")
        super().delete_stream(
            stream, expected_seq=expected_seq, first_persisted_at=first_persisted_at, tombstone=tombstone
        )

    def _plan(self, stream: str) -> StreamPlan:
        plan = super()._plan(stream)
        plan.model = plan.model or getattr(self, "_kept", "")
        return plan


class ForgetsTombstones(MemoryLog):
    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        super().delete_stream(stream, expected_seq=expected_seq, first_persisted_at=first_persisted_at)


class RefusesOnlyNewKeysOfADeletedStream(MemoryLog):
    """Nobody knows which keys are new, once the stream is gone."""

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        if stream in self._tombstones and expected_seq is None:
            return [AppendResult(draft.event_id, 1, now(), True, False) for draft in drafts]
        return super().append(stream, drafts, expected_seq=expected_seq)


class DropsTheTombstoneWithTheFirstRecord(MemoryLog):
    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        adopted = super().adopt(stream, records, model=model)
        self._tombstones.pop(stream, None)
        return adopted


class KeepsTheTombstoneOfADeletedStream(MemoryLog):
    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        super().delete_stream(
            stream,
            expected_seq=expected_seq,
            first_persisted_at=first_persisted_at,
            tombstone=tombstone or self._tombstones.get(stream),
        )


class IgnoresTenants(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        self._given = {**getattr(self, "_given", {}), **{draft.key: draft.tenant for draft in drafts}}
        nobodys = [msgspec.structs.replace(draft, tenant="") for draft in drafts]
        return super().append(stream, nobodys, expected_seq=expected_seq)

    def _keep(self, stream: str, records: Collection[Record], model: str) -> None:
        super()._keep(stream, [msgspec.structs.replace(r, tenant=self._given.get(r.key, "")) for r in records], model)


class TakesTheNextTenant(MemoryLog):
    def _plan(self, stream: str) -> StreamPlan:
        plan = super()._plan(stream)
        plan.tenant = next((record.tenant for record in self._streams.get(stream, []) if record.tenant), "")
        return plan


class RefusesRetriesOfAnotherTenant(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        info = self.stream(stream)
        for draft in drafts if info else ():
            check_tenant(stream, info.tenant if info else "", draft)
        return super().append(stream, drafts, expected_seq=expected_seq)


class RefusesEventsWithoutATenant(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        info = self.stream(stream)
        if info is not None and info.tenant and not all(draft.tenant for draft in drafts):
            raise TenantMismatch("There is no tenant")
        return super().append(stream, drafts, expected_seq=expected_seq)


class RendersFirst(MemoryLog):
    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        try:
            for draft in drafts:
                draft.render(1, now())
        except TypeError as error:
            raise LogFailed("It cannot be written") from error
        return super().append(stream, drafts, expected_seq=expected_seq)


class KeepsTheTombstoneOfAnAdoptedStream(MemoryLog):
    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        kept = self._tombstones.get(stream)
        adopted = super().adopt(stream, records, model=model)
        if kept is not None:
            self._tombstones[stream] = kept
        return adopted


class LeavesATombstoneThoughItRefuses(MemoryLog):
    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        if tombstone is not None:
            self._tombstones[stream] = tombstone
        super().delete_stream(
            stream, expected_seq=expected_seq, first_persisted_at=first_persisted_at, tombstone=tombstone
        )


def without_model(draft: Draft) -> Draft:
    return msgspec.structs.replace(draft, model="")


class ListsLikeADictionary(MemoryLog):
    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        return sorted(super().streams(after=after, limit=limit), key=lambda info: info.stream.casefold())


class ListsHeadsByTheirBeginning(MemoryLog):
    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        return super().heads(after=after, until=until and until + "~")


class TellsVersionsByCount(MemoryLog):
    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        return (Head(h.stream, h.weight, str(h.weight)) for h in super().heads(after=after, until=until))


class ImitatesAFeed(MemoryLog):
    capabilities = MemoryLog.capabilities - {Capability.FEED}


class ClaimsToLast(MemoryLog):
    capabilities = MemoryLog.capabilities | {Capability.DURABLE}


class StaysOpen(MemoryLog):
    def close(self) -> None:
        pass


class DeletesBlobsWithTheirStream(MemoryLog):
    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        for line in self.lines(stream):
            for ref in blob_refs(line):
                self._blobs.pop(ref, None)
        super().delete_stream(
            stream, expected_seq=expected_seq, first_persisted_at=first_persisted_at, tombstone=tombstone
        )


class CollectsNothing(MemoryLog):
    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        return super().collect_blobs(dry_run=True, grace_s=grace_s)


class CollectsInADryRun(MemoryLog):
    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        return msgspec.structs.replace(super().collect_blobs(grace_s=grace_s), dry_run=dry_run)


class CollectsWhatWasJustPut(MemoryLog):
    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        return super().collect_blobs(dry_run=dry_run, grace_s=0)


class MarksTheFirstPageAlone(MemoryLog):
    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        return super().lines(stream, after_seq=after_seq, until_seq=min(until_seq or 1000, 1000))


class ForgetsThatABlobIsNew(MemoryLog):
    def put_blob(self, data: bytes) -> BlobRef:
        known = dict(self._put_at)
        ref = super().put_blob(data)
        self._put_at[ref] = known.get(ref, 0)
        return ref


class CollectsAtEachPut(MemoryLog):
    def put_blob(self, data: bytes) -> BlobRef:
        ref = super().put_blob(data)
        self.collect_blobs(grace_s=0)
        return ref


class TakesEachBlobOnce(MemoryLog):
    def put_blob(self, data: bytes) -> BlobRef:
        before = dict(self._blobs)
        ref = super().put_blob(data)
        self._known = {*getattr(self, "_known", ()), *before}
        if ref in self._known and ref not in before:
            del self._blobs[ref]
        self._known.add(ref)
        return ref


Case = tuple[type[MemoryLog], Callable[..., None]]
kit = LogConformance
planted: list[Case] = [
    (ForgetsKeys, kit.test_a_known_key_writes_nothing),
    (ForgetsKeys, kit.test_racing_on_one_key_stores_one_event_and_gives_equal_answers),
    (OverwritesOnMismatch, kit.test_other_content_never_replaces_the_first),
    (HidesMismatch, kit.test_other_content_under_a_known_key_is_told),
    (AnswersWithTheNewEventId, kit.test_the_first_event_id_is_returned_whatever_is_sent_later),
    (AppendsOneByOne, kit.test_a_draft_that_cannot_be_written_leaves_nothing_behind),
    (AppendsOneByOne, kit.test_expected_seq_that_is_wrong_writes_nothing),
    (ChecksSeqBeforeKeys, kit.test_a_retry_of_a_checked_append_that_went_through_returns_the_first_results),
    (ChecksSeqTooEarly, kit.test_racing_on_one_expected_seq_lets_exactly_one_through),
    (EscapesBodies, kit.test_any_text_comes_back_byte_for_byte),
    (ReadsNewestFirst, kit.test_drafts_are_stored_in_the_order_of_the_call),
    (ReadsFromTheSeqOn, kit.test_read_returns_what_is_after_a_seq_ascending_at_most_limit),
    (LosesTheEndOfAFullPage, kit.test_pages_of_any_size_cover_the_feed_exactly_once),
    (TakesPositionsBeforeCommit, kit.test_a_follower_of_racing_writers_sees_every_event_exactly_once),
    (UsesPositionsAgain, kit.test_a_follower_misses_nothing_after_the_newest_stream_was_deleted),
    (TakesAnyPosition, kit.test_a_position_that_was_never_handed_out_is_refused),
    (TakesSnapshotsBackwards, kit.test_a_snapshot_never_goes_backwards),
    (SavesManyBackwards, kit.test_many_snapshots_at_once_are_kept_as_one_by_one),
    (SavesNoneBecauseOneIsGone, kit.test_many_snapshots_at_once_are_kept_as_one_by_one),
    (KeepsSnapshotsOfOldVersions, kit.test_a_snapshot_of_another_version_replaces_the_kept_one_at_any_seq),
    (ForgetsToDeleteSnapshots, kit.test_snapshots_go_with_their_stream),
    (ForgetsToDeleteKeys, kit.test_a_deleted_stream_can_start_again),
    (DeletesWhateverCame, kit.test_a_stream_that_has_moved_on_is_not_deleted),
    (StopsAtTheFirstRefusal, kit.test_a_batch_that_is_refused_keeps_no_other_from_being_written),
    (AnswersBeforeItStores, kit.test_a_submitted_append_is_stored_when_its_future_is_done),
    (StoresTwiceWhatIsSubmitted, kit.test_many_appends_submitted_by_one_thread_are_all_stored_once),
    (
        FailsWhatIsSubmittedAfterARefusal,
        kit.test_a_submitted_append_that_is_refused_fails_its_own_future_alone,
    ),
    (AnswersSubmittedRetriesAsNew, kit.test_retries_among_submitted_appends_are_answered_with_the_first),
    (ExpectsNothingOfWhatIsSubmitted, kit.test_submitted_appends_expect_a_seq_as_others_do),
    (
        LosesEverySeventhSubmission,
        kit.test_submitted_appends_and_those_of_waiting_threads_lose_and_double_nothing,
    ),
    (LeavesFuturesOpenWhenClosed, kit.test_closing_finishes_what_was_submitted_and_refuses_more),
    (AnswersByName, kit.test_many_batches_are_answered_in_their_order),
    (DeletesWhateverCame, kit.test_a_stream_that_was_begun_again_is_not_deleted),
    (KeepsSnapshotsOfEarlierStreams, kit.test_a_snapshot_of_an_earlier_stream_is_not_kept),
    (ChecksSeqBeforeItDeletes, kit.test_a_checked_deletion_that_races_appends_loses_none),
    (AdoptsUnderNewTimes, kit.test_adopted_records_keep_every_field_and_byte),
    (AdoptsWhatIsBehindTheEnd, kit.test_a_record_that_differs_in_anything_is_a_conflict),
    (AdoptsOneByOne, kit.test_a_key_that_stands_at_another_seq_is_a_conflict),
    (AdoptsOneByOne, kit.test_what_is_no_stretch_of_the_stream_is_refused),
    (ForgetsAdoptedKeys, kit.test_an_append_goes_on_after_adopted_records_and_knows_their_keys),
    (ClosesGaps, kit.test_a_gap_is_kept_or_refused_and_never_closed),
    (HidesAdoptedFromTheFeed, kit.test_the_feed_shows_adopted_records_as_if_appended_now),
    (RecordsNoModel, kit.test_the_first_append_records_the_model),
    (RecordsNoModel, kit.test_any_name_of_a_model_is_recorded),
    (AcceptsAnyModelLater, kit.test_events_of_another_model_are_refused_and_nothing_is_written),
    (AcceptsAnyModelLater, kit.test_racing_first_appends_of_two_models_let_one_model_through),
    (TakesTheNewestModel, kit.test_events_of_another_model_are_refused_and_nothing_is_written),
    (TakesTheNewestModel, kit.test_a_stream_that_records_none_accepts_any_model_and_never_records_one),
    (IgnoresTenants, kit.test_events_of_another_tenant_are_refused_and_nothing_is_written),
    (IgnoresTenants, kit.test_racing_first_appends_of_two_tenants_let_one_through),
    (TakesTheNextTenant, kit.test_a_stream_that_was_begun_without_a_tenant_belongs_to_nobody),
    (IgnoresTenants, kit.test_one_append_of_two_tenants_begins_no_stream),
    (IgnoresTenants, kit.test_a_stream_that_was_deleted_may_begin_again_for_another_tenant),
    (RefusesRetriesOfAnotherTenant, kit.test_what_an_older_version_stored_is_adopted_and_answered),
    (RefusesEventsWithoutATenant, kit.test_an_event_without_a_tenant_is_accepted),
    (DropsTheTombstoneWithTheFirstRecord, kit.test_it_counts_until_the_last_event_is_back),
    (KeepsTheTombstoneOfADeletedStream, kit.test_a_stream_that_is_half_restored_can_be_deleted_and_restored_again),
    (RendersFirst, kit.test_a_draft_that_cannot_be_written_is_an_error_of_ours_whatever_else_is_wrong),
    (ChecksTheModelOfNewKeysAlone, kit.test_another_model_is_refused_whatever_the_keys_and_the_expected_seq),
    (RecordsNoModel, kit.test_one_append_of_several_models_is_refused),
    (AdoptsWithoutTheModel, kit.test_adopted_records_bring_their_model),
    (ForgetsTombstones, kit.test_a_tombstone_is_all_that_is_left),
    (RefusesOnlyNewKeysOfADeletedStream, kit.test_no_append_begins_it_again),
    (KeepsTheTombstoneOfAnAdoptedStream, kit.test_adopting_brings_it_back),
    (LeavesATombstoneThoughItRefuses, kit.test_a_refused_deletion_leaves_no_tombstone),
    (AdoptsWithoutTheModel, kit.test_records_of_another_model_are_not_adopted),
    (KeepsTheModelOfADeletedStream, kit.test_a_stream_that_was_deleted_may_begin_again_with_another_model),
    (ListsLikeADictionary, kit.test_streams_are_listed_by_code_point),
    (ListsHeadsByTheirBeginning, kit.test_heads_are_the_streams_within_a_range_by_code_point),
    (TellsVersionsByCount, kit.test_a_stream_begun_again_has_another_version),
    (DeletesBlobsWithTheirStream, kit.test_a_blob_goes_with_the_last_stream_that_refers_to_it),
    (CollectsNothing, kit.test_a_blob_that_no_stream_refers_to_is_collected),
    (CollectsInADryRun, kit.test_a_dry_run_says_what_a_collection_would_remove),
    (CollectsWhatWasJustPut, kit.test_a_blob_that_was_just_put_is_not_collected),
    (ForgetsThatABlobIsNew, kit.test_a_blob_that_was_just_put_is_not_collected),
    (CollectsAtEachPut, kit.test_a_writer_loses_no_blob_to_a_collection),
    (MarksTheFirstPageAlone, kit.test_a_collection_reads_streams_to_their_end),
    (TakesEachBlobOnce, kit.test_a_blob_that_was_collected_can_be_put_again),
    (ImitatesAFeed, kit.test_the_feed_covers_all_streams),
    (ClaimsToLast, kit.test_every_capability_that_is_declared_is_tested),
    (StaysOpen, kit.test_leaving_the_block_closes_the_log),
]


@pytest.fixture(autouse=True)
def _no_explanations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a planted bug breaks needs no explanation: on CI, pytest would compare large records for minutes."""
    monkeypatch.delenv("CI", raising=False)


@pytest.mark.parametrize(("broken", "claim"), planted, ids=lambda part: getattr(part, "__name__", ""))
def test_a_planted_bug_is_caught(broken: type[MemoryLog], claim: Callable[..., None]) -> None:
    claim(LogConformance(), MemoryLog())
    with pytest.raises(found):
        claim(LogConformance(), broken())


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        ForgetsKeys,
        HidesMismatch,
        ReadsFromTheSeqOn,
        UsesPositionsAgain,
        TakesSnapshotsBackwards,
        ForgetsToDeleteKeys,
        AcceptsAnyModelLater,
        KeepsTheModelOfADeletedStream,
    ],
)
def test_random_histories_find_a_planted_bug(broken: type[MemoryLog]) -> None:
    how = settings(how_default, max_examples=300, phases=[Phase.generate], derandomize=True, report_multiple_bugs=False)
    with pytest.raises(found):
        check_histories(Opener("broken:", lambda _: broken()), how)


def test_a_log_that_forgets_is_not_durable() -> None:
    opener = Opener("forgetful:", lambda _: MemoryLog())
    for claim in (
        DurableLogConformance.test_records_are_the_same_after_reopening,
        DurableLogConformance.test_keys_are_known_after_reopening,
        DurableLogConformance.test_a_position_is_good_after_reopening,
    ):
        with pytest.raises(found):
            claim(DurableLogConformance(), opener(), opener)


def test_a_capability_that_is_tested_must_be_declared() -> None:
    class TestedTooMuch(LogConformance, DurableLogConformance): ...

    with pytest.raises(found):
        TestedTooMuch().test_every_capability_that_is_declared_is_tested(MemoryLog())
    TestedTooMuch().test_every_capability_that_is_declared_is_tested(ClaimsToLast())


# --- what is looked for after a kill ------------------------------------------------------------------------


def written(*batches: Sequence[Draft]) -> tuple[EventLog, dict[str, int]]:
    """A log with these batches, and what its writer would have acknowledged."""
    log = MemoryLog()
    told = {draft.key: log.append("s", [draft])[0].seq for batch in batches for draft in batch}
    return log, told


def task_with_a_long_batch() -> tuple[Task, list[list[Draft]]]:
    task = Task("s", 6)
    batches = list(task.sent(0))
    assert max(len(batch) for batch in batches) > 1
    return task, batches


def test_a_healthy_end_is_accepted_with_more_stored_than_acknowledged() -> None:
    task, batches = task_with_a_long_batch()
    log, told = written(*batches)
    check_stored(log, [task], told)
    check_stored(log, [task], {key: seq for key, seq in told.items() if seq == 1})


def test_a_lost_acknowledged_event_is_caught() -> None:
    task, batches = task_with_a_long_batch()
    log, told = written(*batches[:-1])
    with pytest.raises(AssertionError, match="lost"):
        check_stored(log, [task], told | {batches[-1][0].key: len(told) + 1})


def test_a_batch_cut_short_is_caught() -> None:
    task, batches = task_with_a_long_batch()
    long = next(number for number, batch in enumerate(batches) if len(batch) > 1)
    log, told = written(*batches[:long], batches[long][:-1])
    with pytest.raises(AssertionError):
        check_stored(log, [task], told)


def test_an_event_that_nobody_sent_is_caught() -> None:
    task, batches = task_with_a_long_batch()
    log, told = written(*batches)
    log.append("s", [note("w/0/99/0")])
    with pytest.raises(AssertionError):
        check_stored(log, [task], told)


def test_a_key_stored_twice_is_caught() -> None:
    task, batches = task_with_a_long_batch()
    log = ForgetsKeys()
    for batch in [*batches, batches[0]]:
        with suppress(SequenceConflict):
            log.append("s", batch)
    with pytest.raises(AssertionError, match="twice"):
        check_stored(log, [task], {})


def test_a_seq_other_than_the_acknowledged_one_is_caught() -> None:
    task, batches = task_with_a_long_batch()
    log, told = written(*batches)
    first, second = list(told)[:2]
    with pytest.raises(AssertionError):
        check_stored(log, [task], told | {first: told[second], second: told[first]})


def test_lines_out_of_order_are_caught() -> None:
    task, batches = task_with_a_long_batch()
    log, told = written(*reversed(batches))
    with pytest.raises(AssertionError):
        check_stored(log, [task], told)


def test_an_opener_closes_what_it_opened() -> None:
    opener = Opener("memory:")
    logs = [opener(), opener()]
    opener.close()
    for log in logs:
        with pytest.raises(Exception, match="closed"):
            log.append("s", numbered(1))
