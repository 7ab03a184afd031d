"""The simulated disk: it behaves as the real one does, and a crash leaves of it what POSIX permits."""

from __future__ import annotations

import errno
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.conformance.simulated_disk import Operation, SimulatedDisk, every_crash, every_kill
from runstate.storage.disk import (
    Disk,
    File,
    Lock,
    LockBusy,
    PoisonedHandle,
    RealDisk,
    replace_durably,
    write_new,
)

ROOT = PurePosixPath("/")
LOG = ROOT / "log"
A, B, D = ROOT / "a", ROOT / "b", ROOT / "d"


def disk_with(**files: bytes) -> SimulatedDisk:
    """A disk on which these files are durable."""
    disk = SimulatedDisk()
    for name, data in files.items():
        write_new(disk, ROOT / name, data)
    disk.sync_directory(ROOT)
    return disk


def contents(disks: Iterable[SimulatedDisk], path: PurePath = LOG) -> set[bytes | None]:
    """What `path` holds on each of the disks, None where it is missing."""
    return {disk.read(path) if disk.exists(path) else None for disk in disks}


def trees(disks: Iterable[SimulatedDisk]) -> list[dict[str, bytes | None]]:
    return [{str(path): data for path, data in disk.tree().items()} for disk in disks]


# --- the same behaviour as the real disk ------------------------------------------------------------------

NAMES = ["a", "b", "d", "e", "d/a", "d/b", "a/x"]
NAME = st.sampled_from(NAMES)
START = [("write_new", "a", b"a"), ("make_directory", "d"), ("make_directory", "e"), ("write_new", "d/a", b"")]
SLOT, SIZE, DATA = st.integers(0, 1), st.integers(0, 20), st.binary(max_size=9)
PATH_CALLS = ["read", "exists", "names", "remove", "make_directory", "remove_directory", "sync_directory"]
STEP = st.one_of(
    st.tuples(st.sampled_from(PATH_CALLS), NAME),
    st.tuples(st.sampled_from(["open", "open read_only", "create", "open or create", "lock"]), SLOT, NAME),
    st.tuples(st.just("rename"), NAME, NAME),
    st.tuples(st.sampled_from(["write_new", "replace_durably"]), NAME, DATA),
    st.tuples(st.just("append"), SLOT, DATA),
    st.tuples(st.just("truncate"), SLOT, SIZE),
    st.tuples(st.just("read_at"), SLOT, SIZE, SIZE),
    st.tuples(st.sampled_from(["size", "sync", "close", "release"]), SLOT),
)


class Player:
    """Performs steps on a disk. What a step gives is its result, or the kind and errno of its error."""

    def __init__(self, disk: Disk, root: PurePath) -> None:
        self.disk, self.root = disk, root
        self.files: dict[int, File] = {}
        self.locks: dict[int, Lock] = {}

    def outcome(self, verb: str, *args: Any) -> object:
        try:
            return self.perform(verb, *args)
        except OSError as error:
            return type(error), error.errno

    def perform(self, verb: str, first: Any, *rest: Any) -> object:
        match verb:
            case "open" | "open read_only" | "create" | "open or create":
                how = {"open or create": {"create": True}, "open read_only": {"read_only": True}}.get(verb, {})
                file = getattr(self.disk, verb.split()[0])(self.root / rest[0], **how)
                self.perform("close", first)
                self.files[first] = file
            case "lock":
                self.perform("release", first)
                self.locks[first] = self.disk.lock(self.root / rest[0])
            case "release":
                if first in self.locks:
                    self.locks.pop(first).release()
            case "append" | "truncate" | "read_at" | "size" | "sync" | "close":
                return getattr(self.files[first], verb)(*rest) if first in self.files else None
            case "write_new" | "replace_durably":
                {"write_new": write_new, "replace_durably": replace_durably}[verb](self.disk, self.root / first, *rest)
            case "rename":
                self.disk.rename(self.root / first, self.root / rest[0])
            case _:
                return getattr(self.disk, verb)(self.root / first)
        return None


def check_parity(*steps: tuple[Any, ...]) -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as cleanup:
        directory, simulated = Path(name), SimulatedDisk()
        players = Player(RealDisk(), directory), Player(simulated, ROOT)
        for slot in (0, 1):
            cleanup.callback(players[0].perform, "close", slot)
            cleanup.callback(players[0].perform, "release", slot)
        for step in [*START, *steps]:
            outcomes = [player.outcome(*step) for player in players]
            assert outcomes[0] == outcomes[1], step
        assert simulated.tree() == {
            ROOT / path.relative_to(directory): path.read_bytes() if path.is_file() else None
            for path in directory.rglob("*")
        }


@settings(max_examples=100, deadline=None)
@given(st.lists(STEP, max_size=30))
def test_the_same_calls_have_the_same_outcome_as_on_the_real_disk(steps: list[tuple[Any, ...]]) -> None:
    check_parity(*steps)


def test_each_call_on_each_kind_of_name_has_the_same_outcome_as_on_the_real_disk() -> None:
    for call, name in product(PATH_CALLS, NAMES):
        check_parity((call, name))
    for call, name in product(["open", "open read_only", "create", "open or create", "lock"], NAMES):
        check_parity((call, 0, name))
    for source, target in product(NAMES, NAMES):
        check_parity(("rename", source, target))


# --- what a power cut leaves ------------------------------------------------------------------------------


def test_synced_data_under_a_synced_name_survives_every_crash() -> None:
    assert trees(disk_with(log=b"data").crash_states()) == [{"/log": b"data"}]


def test_an_unsynced_write_may_be_kept_lost_cut_at_every_byte_or_filled_with_zeros() -> None:
    disk = disk_with(log=b"|")
    disk.open(LOG).append(b"abc")
    assert contents(disk.crash_states()) == {
        *(b"|", b"|a", b"|ab", b"|abc"),  # lost, cut short, kept
        *(b"|\0\0\0", b"|a\0\0", b"|ab\0"),  # the size came, the rest of the data did not
        *(b"|\0bc", b"|\0\0c"),  # the end came before the beginning
    }


def test_unsynced_writes_may_persist_out_of_order() -> None:
    disk = disk_with(log=b"")
    file = disk.open(LOG)
    for data in (b"x", b"y", b"z"):
        file.append(data)
    subsets = {b"", b"x", b"xy", b"xyz", b"\0y", b"\0yz", b"x\0z", b"\0\0z"}
    assert subsets <= contents(disk.crash_states())


def test_a_sync_keeps_what_was_written_before_it_and_nothing_after_it() -> None:
    disk = disk_with(log=b"")
    file = disk.open(LOG)
    file.append(b"a")
    file.sync()
    file.append(b"b")
    assert contents(disk.crash_states()) == {b"a", b"ab", b"a\0"}


def test_an_unsynced_truncation_may_be_undone() -> None:
    disk = disk_with(log=b"abcd")
    disk.open(LOG).truncate(2)
    assert contents(disk.crash_states()) == {b"abcd", b"ab"}


def test_a_write_over_an_undone_truncation_lands_in_the_old_data() -> None:
    disk = disk_with(log=b"abcd")
    file = disk.open(LOG)
    file.truncate(1)
    file.append(b"X")
    assert contents(disk.crash_states()) == {b"abcd", b"a", b"aX", b"aXcd", b"a\0"}


def test_syncing_a_new_file_does_not_persist_its_name() -> None:
    disk = SimulatedDisk()
    write_new(disk, LOG, b"data")
    assert contents(disk.crash_states()) == {None, b"data"}


def test_syncing_a_directory_does_not_persist_the_data_of_its_files() -> None:
    disk = SimulatedDisk()
    disk.open(LOG, create=True).append(b"d")
    disk.sync_directory(ROOT)
    assert contents(disk.crash_states()) == {b"", b"d", b"\0"}


def test_an_unsynced_rename_leaves_the_old_name_or_the_new_one_and_never_neither() -> None:
    disk = disk_with(a=b"data")
    disk.rename(A, B)
    assert trees(disk.crash_states()) == [{"/b": b"data"}, {"/a": b"data"}]


def test_a_rename_onto_a_file_leaves_its_old_content_or_the_new_one() -> None:
    disk = disk_with(a=b"new", b=b"old")
    disk.rename(A, B)
    assert trees(disk.crash_states()) == [{"/b": b"new"}, {"/a": b"new", "/b": b"old"}]


def test_a_rename_is_durable_once_its_directory_is_synced() -> None:
    disk = disk_with(a=b"data")
    disk.rename(A, B)
    disk.sync_directory(ROOT)
    assert trees(disk.crash_states()) == [{"/b": b"data"}]


def test_a_renamed_file_whose_data_was_not_synced_may_be_empty() -> None:
    disk = disk_with(b=b"old")
    disk.create(A).append(b"n")
    disk.rename(A, B)
    assert contents(disk.crash_states(), B) == {b"old", b"n", b"", b"\0"}


def test_a_name_used_again_after_a_rename_never_buries_the_renamed_file() -> None:
    disk = disk_with(a=b"precious")
    disk.rename(A, B)
    disk.create(A)
    assert all(b"precious" in tree.values() for tree in trees(disk.crash_states()))


def test_changes_to_different_names_persist_in_any_order() -> None:
    disk = SimulatedDisk()
    for path in (A, B):
        disk.create(path)
    assert {frozenset(tree) for tree in trees(disk.crash_states())} == {
        frozenset(names) for names in ([], ["/a"], ["/b"], ["/a", "/b"])
    }


def test_an_unsynced_removal_may_be_undone_and_a_synced_one_may_not() -> None:
    disk = disk_with(log=b"data")
    disk.remove(LOG)
    assert contents(disk.crash_states()) == {None, b"data"}
    disk.sync_directory(ROOT)
    assert contents(disk.crash_states()) == {None}


def test_a_new_directory_may_vanish_with_all_it_holds_until_its_parent_is_synced() -> None:
    disk = SimulatedDisk()
    disk.make_directory(D)
    write_new(disk, D / "log", b"data")
    disk.sync_directory(D)
    assert trees(disk.crash_states()) == [{"/d": None, "/d/log": b"data"}, {}]
    disk.sync_directory(ROOT)
    assert trees(disk.crash_states()) == [{"/d": None, "/d/log": b"data"}]


def test_what_a_failed_sync_left_stays_readable_and_no_later_sync_makes_it_durable() -> None:
    disk = disk_with(log=b"")
    disk.fail("sync")
    file = disk.open(LOG)
    file.append(b"a")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    with pytest.raises(PoisonedHandle):
        file.append(b"b")
    again = disk.open(LOG)
    assert again.append(b"b") == 1
    again.sync()
    assert contents(disk.crash_states()) == {b"ab", b"\0b"}


def test_what_a_failed_directory_sync_left_is_not_made_durable_by_a_second_one() -> None:
    disk = SimulatedDisk()
    write_new(disk, LOG, b"")
    disk.fail("sync_directory")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_directory(ROOT)
    disk.sync_directory(ROOT)
    assert contents(disk.crash_states()) == {None, b""}


def test_crash_states_begin_with_nothing_lost_and_all_lost_and_repeat_none() -> None:
    disk = disk_with(a=b"old")
    replace_durably(disk, A, b"new")
    disk.open(A).append(b"+")
    disk.create(B).append(b"b")
    states = trees(disk.crash_states())
    assert states[:2] == [{"/a": b"new+", "/b": b"b"}, {"/a": b"new"}]
    assert all(state not in states[:place] for place, state in enumerate(states))


def test_a_rebooted_disk_is_whole_durable_and_independent() -> None:
    disk = disk_with(log=b"")
    disk.open(LOG).append(b"a")
    rebooted, *_ = disk.crash_states()
    assert trees(rebooted.crash_states()) == [{"/log": b"a"}]
    rebooted.remove(LOG)
    assert disk.read(LOG) == b"a"


def long_history() -> SimulatedDisk:
    disk = disk_with(log=b"")
    file = disk.open(LOG)
    for number in range(30):
        file.append(b"record %d" % number)
    return disk


def test_too_many_crash_states_are_sampled_by_seed_with_both_extremes() -> None:
    states = trees(long_history().crash_states(states_max=50, seed=1))
    assert states[0]["/log"] == long_history().read(LOG)
    assert states[1]["/log"] == b""
    assert 40 < len(states) <= 50
    assert states == trees(long_history().crash_states(states_max=50, seed=1))
    assert states != trees(long_history().crash_states(states_max=50, seed=2))


def test_a_random_crash_state_depends_on_its_seed_alone() -> None:
    first, again, other = (trees([long_history().random_crash_state(seed)]) for seed in (1, 1, 2))
    assert first == again != other


def test_a_random_crash_state_is_one_of_all_crash_states() -> None:
    disk = disk_with(log=b"")
    disk.open(LOG).append(b"abcd")
    every = trees(disk.crash_states())
    assert all(tree in every for tree in trees(disk.random_crash_state(seed) for seed in range(50)))


def test_a_large_write_is_torn_at_its_ends_at_pages_and_in_between() -> None:
    disk = disk_with(log=b"|")
    disk.open(LOG).append(b"x" * 10_000)
    sizes = {len(data or b"") for data in contents(disk.crash_states())}
    assert {2, 3, 4096, 8192, 10_000, 10_001} <= sizes
    assert 60 < len(sizes) < 100


# --- kills, locks and faults ------------------------------------------------------------------------------


def test_a_kill_loses_nothing_that_was_written_and_a_power_cut_after_it_may() -> None:
    disk = SimulatedDisk()
    disk.open(LOG, create=True).append(b"a")
    killed = disk.killed()
    assert killed.read(LOG) == b"a"
    assert contents(killed.crash_states()) == {None, b"", b"a", b"\0"}


def test_a_lock_is_exclusive_and_free_after_release_kill_and_power_cut() -> None:
    disk = SimulatedDisk()
    lock = disk.lock(LOG)
    with pytest.raises(LockBusy):
        disk.lock(LOG)
    for rebooted in (disk.killed(), *disk.crash_states()):
        rebooted.lock(LOG)
    lock.release()
    disk.lock(LOG)


@pytest.mark.parametrize("operation", ["read", "write", "sync", "truncate", "rename", "sync_directory", "lock"])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_nth_call_fails_once_or_from_then_on(operation: Operation, persistent: bool) -> None:
    disk = disk_with(log=b"data")
    calls: dict[Operation, Callable[[], object]] = {
        "read": lambda: disk.read(LOG),
        "write": lambda: disk.open(LOG).append(b"x"),
        "sync": lambda: disk.open(LOG).sync(),
        "truncate": lambda: disk.open(LOG).truncate(0),
        "rename": lambda: disk.rename(LOG, LOG),
        "sync_directory": lambda: disk.sync_directory(ROOT),
        "lock": lambda: disk.lock(LOG).release(),
    }
    disk.fail(operation, nth=2, error=errno.ENOLCK, persistent=persistent)
    failed = []
    for _ in range(4):
        try:
            calls[operation]()
            failed.append(False)
        except OSError as error:
            failed.append(error.errno == errno.ENOLCK)
    assert failed == ([False, True, True, True] if persistent else [False, True, False, False])
    disk.heal()
    calls[operation]()


def test_a_full_disk_takes_a_part_then_refuses_until_there_is_room_again() -> None:
    disk = disk_with(log=b"12", a=b"345")
    disk.capacity_bytes = 8
    file = disk.open(LOG)
    with pytest.raises(OSError, match="No space"):
        file.append(b"abcdef")
    assert disk.read(LOG) == b"12abc"
    file.truncate(2)
    disk.remove(A)
    file.append(b"abcdef")
    assert disk.read(LOG) == b"12abcdef"


def test_short_writes_are_separate_calls_that_may_fail_halfway() -> None:
    disk = SimulatedDisk(write_bytes_max=2)
    file = disk.open(LOG, create=True)
    file.append(b"12345")
    assert disk.calls["write"] == 3
    disk.fail("write", nth=2)
    with pytest.raises(OSError, match="Input/output"):
        file.append(b"abc")
    assert disk.read(LOG) == b"12345ab"


def test_a_flipped_bit_stays_flipped_across_crashes() -> None:
    disk = disk_with(log=b"abc")
    disk.flip_bit(LOG, 1, 0)
    assert disk.read(LOG) == b"acc"
    assert contents(disk.crash_states()) == {b"acc"}


def test_a_temporary_name_avoids_what_an_earlier_process_left() -> None:
    disk = SimulatedDisk()
    disk.create(disk.temp_name(LOG))
    replace_durably(disk, LOG, b"data")
    assert len(disk.names(ROOT)) == 2


# --- every crash of a scenario ----------------------------------------------------------------------------


def test_every_crash_tells_what_was_going_on_and_what_was_acknowledged_by_then() -> None:
    def scenario(disk: Disk) -> Iterator[str]:
        file = disk.open(LOG, create=True)
        disk.sync_directory(ROOT)
        yield "created"
        file.append(b"a")

    assert [
        (crash.during, crash.disk.exists(LOG) and crash.disk.read(LOG), crash.acknowledged)
        for crash in every_crash(scenario)
    ] == [
        ("after call 1: create /log", b"", ()),
        ("after call 1: create /log", False, ()),
        ("after call 3: write at 0 of /log", b"a", ("created",)),
        ("after call 3: write at 0 of /log", b"", ("created",)),
        ("after call 3: write at 0 of /log", b"\0", ("created",)),
    ]


def test_every_crash_comes_between_an_acknowledgement_and_a_sync_that_follows_it() -> None:
    def too_early(disk: Disk) -> Iterator[str]:
        with disk.open(LOG) as file:
            file.append(b"a")
            yield "appended"
            file.sync()

    crashes = every_crash(too_early, disk_with(log=b""))
    assert contents(crash.disk for crash in crashes if crash.acknowledged) == {b"", b"a", b"\0"}


def test_every_kill_stops_before_and_after_each_call_and_at_each_byte_of_split_writes() -> None:
    def scenario(disk: Disk) -> Iterator[bytes]:
        disk.open(LOG, create=True).append(b"abc")
        yield b"abc"

    crashes = every_kill(scenario, SimulatedDisk(write_bytes_max=1))
    assert contents(crash.disk for crash in crashes) == {None, b"", b"a", b"ab", b"abc"}


# --- a toy journal: the right protocol survives, broken ones are caught ------------------------------------


class Journal:
    """Lines with checksums in one file. Recovery keeps the longest good prefix."""

    def __init__(self, disk: Disk, *, cuts_stub: bool = True, syncs_name: bool = True, syncs: bool = True) -> None:
        self.syncs = syncs
        self.file = disk.open(LOG, create=True)
        if syncs_name:
            disk.sync_directory(ROOT)
        self.records = list(self.recover())
        good_bytes = sum(len(self.line(record)) for record in self.records)
        if cuts_stub and good_bytes < self.file.size():
            self.file.truncate(good_bytes)
            self.file.sync()

    def recover(self) -> Iterator[bytes]:
        for line in self.file.read_at(0, self.file.size()).split(b"\n")[:-1]:
            record = line[9:]
            if line + b"\n" != self.line(record):
                return
            yield record

    @staticmethod
    def line(record: bytes) -> bytes:
        return b"%08x %s\n" % (zlib.crc32(record), record)

    def append(self, record: bytes) -> None:
        self.file.append(self.line(record))
        if self.syncs:
            self.file.sync()
        self.records.append(record)


SENT = [b"one", b"two", b"three"]


def violations(**protocol: bool) -> list[str]:
    """The crashes after which acknowledged ⊆ stored ⊆ sent, in order, is not true, or appending fails."""

    def history(disk: Disk) -> Iterator[bytes]:
        journal = Journal(disk, **protocol)
        for record in SENT:
            journal.append(record)
            yield record

    found = []
    for crash in every_crash(history):
        stored = Journal(crash.disk, **protocol).records
        Journal(crash.disk, **protocol).append(b"again")
        fine = stored == SENT[: len(stored)] and len(stored) >= len(crash.acknowledged)
        if not fine or Journal(crash.disk, **protocol).records != [*stored, b"again"]:
            found.append(crash.during)
    return found


def test_a_right_journal_survives_every_crash() -> None:
    assert violations() == []


@pytest.mark.parametrize("broken", ["syncs", "syncs_name", "cuts_stub"])
def test_a_broken_journal_is_caught(broken: str) -> None:
    assert violations(**{broken: False})


def test_a_right_journal_survives_a_crash_during_the_recovery_from_a_crash() -> None:
    def history(disk: Disk) -> Iterator[bytes]:
        journal = Journal(disk)
        for record in SENT[:2]:
            journal.append(record)
            yield record

    for crash in every_crash(history):
        for again in every_crash(lambda disk: Journal(disk).records, crash.disk):
            stored = Journal(again.disk).records
            assert stored == SENT[: len(stored)]
            assert len(stored) >= len(again.acknowledged or crash.acknowledged)


def test_a_right_journal_loses_nothing_to_a_kill_at_any_byte() -> None:
    def history(disk: Disk) -> Iterator[bytes]:
        journal = Journal(disk)
        for record in SENT:
            journal.append(record)
            yield record

    for crash in every_kill(history, SimulatedDisk(write_bytes_max=1)):
        stored = Journal(crash.disk).records
        assert len(crash.acknowledged) <= len(stored) <= len(crash.acknowledged) + 1


def replace_without_data_sync(disk: Disk, path: PurePath, data: bytes) -> None:
    temp = disk.temp_name(path)
    with disk.create(temp) as file:
        file.append(data)
    disk.rename(temp, path)
    disk.sync_directory(path.parent)


def replace_without_directory_sync(disk: Disk, path: PurePath, data: bytes) -> None:
    temp = disk.temp_name(path)
    write_new(disk, temp, data)
    disk.rename(temp, path)


def replace_in_place(disk: Disk, path: PurePath, data: bytes) -> None:
    with disk.open(path, create=True) as file:
        file.truncate(0)
        file.append(data)
        file.sync()
    disk.sync_directory(path.parent)


def snapshot_violations(replace: Callable[[Disk, PurePath, bytes], None]) -> list[str]:
    versions = [b"version 1", b"version 2", b"version 3"]

    def history(disk: Disk) -> Iterator[int]:
        for number, data in enumerate(versions):
            replace(disk, A, data)
            yield number

    found = []
    for crash in every_crash(history):
        stored = crash.disk.read(A) if crash.disk.exists(A) else None
        permitted = [
            *versions[max(0, len(crash.acknowledged) - 1) :],
            *([] if crash.acknowledged else [None]),
        ]
        if stored not in permitted:
            found.append(crash.during)
    return found


def test_a_snapshot_replaced_durably_is_the_old_or_the_new_one_after_every_crash() -> None:
    assert snapshot_violations(replace_durably) == []


@pytest.mark.parametrize("broken", [replace_without_data_sync, replace_without_directory_sync, replace_in_place])
def test_a_broken_replacement_is_caught(broken: Callable[[Disk, PurePath, bytes], None]) -> None:
    assert snapshot_violations(broken)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_directory"])
def test_a_replacement_that_meets_a_fault_leaves_the_old_or_the_new_content(operation: Operation) -> None:
    disk = disk_with(a=b"old")
    disk.fail(operation)
    with pytest.raises(OSError, match="Input/output"):
        replace_durably(disk, A, b"new")
    assert disk.names(ROOT) == ["a"]
    assert contents(disk.crash_states(), A) == ({b"old", b"new"} if operation == "sync_directory" else {b"old"})
