"""The key file of a run: a writer that opens a run by it answers as if it had read every line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from tests.crash.test_ndjson_crashes import Form, check_lasting, check_recovered, each_form, forms, root, sent

from runstate.conformance.notes import as_held, findings, keys, note, numbered, stored
from runstate.conformance.simulated_disk import SimulatedDisk, every_crash
from runstate.errors import LogDamaged, SequenceConflict
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.ndjson import run as run_module
from runstate.storage.disk import File

file, key_file = root / "r/events.ndjson", root / "r/keys.idx"


def opened(disk: SimulatedDisk) -> NdjsonLog:
    return NdjsonLog(root, disk=disk)


@pytest.fixture
def behind_max(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "keys_behind_max", 3)


def put(disk: SimulatedDisk, path: PurePosixPath, data: bytes) -> None:
    disk.remove(path)
    with disk.create(path) as new:
        new.append(data)


def long_run(disk: SimulatedDisk, form: Form, batches: list[int]) -> list[str]:
    """A run of batches, closed and opened again after each; its keys."""
    names: list[str] = []
    for size in batches:
        names += (new := [f"key-{len(names) + number}" for number in range(size)])
        with opened(disk) as log:
            log.append("r", [form[1](key) for key in new])
    return names


@pytest.mark.usefixtures("behind_max")
@each_form
@pytest.mark.parametrize("batches", [[3], [4, 1], [64, 65, 2], [200, 1, 63, 3, 130]])
def test_a_run_that_is_opened_by_its_key_file_answers_as_if_it_was_read_whole(form: Form, batches: list[int]) -> None:
    disk = SimulatedDisk()
    names = long_run(disk, form, batches)
    right = stored(opened(disk), "r")
    by_keys, whole = opened(disk), opened(forgetful := disk.killed())
    forgetful.remove(key_file)
    for log in (by_keys, whole):
        results = log.append("r", [form[1](key) for key in names])
        assert [(result.seq, result.persisted) for result in results] == [(n, False) for n in range(1, len(names) + 1)]
        assert [log.find("r", key) for key in names[::7]] == right[::7]
        assert log.find("r", "another") is None
        assert log.append("r", [form[1]("new")])[0].seq == len(names) + 1
        assert stored(log, "r")[:-1] == right
        log.close()
    assert [findings(opened(each)) for each in (disk, forgetful)] == [[], []]


@pytest.mark.usefixtures("behind_max")
def test_a_key_that_an_adopted_record_takes_again_is_refused() -> None:
    disk = SimulatedDisk()
    long_run(disk, forms[1], [10])
    taken = as_held("r", [*numbered(10), note("key-3")])[10:]
    with pytest.raises(SequenceConflict):
        opened(disk).adopt("r", taken)


def test_the_first_append_to_a_long_run_reads_a_small_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    long_run(disk, forms[1], [20_000])
    log, read = opened(disk), list[int]()
    read_at = File.read_at

    def counting(self: File, offset: int, size: int) -> bytes:
        data = read_at(self, offset, size)
        read.append(len(data) if self.path == file else 0)
        return data

    monkeypatch.setattr(File, "read_at", counting)
    assert log.append("r", [note("one more")])[0].seq == 20_001
    assert not log.append("r", [note("key-12345")])[0].persisted
    assert sum(read) < len(disk.read(file)) // 20
    assert len(disk.read(key_file)) < 20_000 * 8 + 20_000 // 64 * 8 + 400


@pytest.mark.usefixtures("behind_max")
@each_form
def test_a_file_that_was_touched_since_is_read_whole(form: Form) -> None:
    start = SimulatedDisk()
    names = long_run(start, form, [10, 1])
    size = len(start.read(file))
    for place in range(0, size, 41):
        disk = start.killed()
        disk.flip_bit(file, place, 2)
        with pytest.raises(LogDamaged):
            opened(disk).append("r", [form[1]("new")])
    older = start.killed()
    long_run_bytes, index = start.read(key_file), start.read(root / "r/index.json")
    with opened(older) as log:
        log.append("r", [form[1](f"later-{number}") for number in range(5)])
    # A key file, or an index, of an earlier time beside the file of now.
    for path, data in ((key_file, long_run_bytes), (root / "r/index.json", index)):
        disk = older.killed()
        put(disk, path, data)
        log = opened(disk)
        assert not log.append("r", [form[1](names[3])])[0].persisted
        assert not log.append("r", [form[1]("later-2")])[0].persisted
        assert log.append("r", [form[1]("new")])[0].seq == 17


@pytest.mark.usefixtures("behind_max")
def test_no_flip_in_the_key_file_hides_a_key() -> None:
    start = SimulatedDisk()
    names = long_run(start, forms[1], [10, 1])
    for place in range(0, len(start.read(key_file)), 5):
        disk = start.killed()
        disk.flip_bit(key_file, place, place % 8)
        with opened(disk) as log:
            assert not any(result.persisted for result in log.append("r", [note(key) for key in names])), place


def test_no_power_cut_makes_a_key_file_that_hides_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "keys_behind_max", 1)
    for form in forms:

        def closing_after_each(disk: SimulatedDisk, form: Form = form) -> Iterator[str]:
            for batch in (sent[:2], sent[2:3], sent[3:]):
                with opened(disk) as log:
                    log.append("r", [form[1](key) for key in batch])
                    yield from batch

        for number, crash in enumerate(every_crash(closing_after_each, states_max=60)):
            told = opened(crash.disk.killed())
            for key in crash.acknowledged:
                assert not told.append("r", [form[1](key)])[0].persisted, crash.during
            assert len(set(keys(stored(told, "r")))) == len(stored(told, "r")), crash.during
            check_recovered(crash.disk, form, crash.acknowledged, crash.during)
            if number % 5 == 0:
                check_lasting(crash.disk, crash.during)
