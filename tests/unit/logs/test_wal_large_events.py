"""Large events take time in proportion to their size, wherever a WAL is read."""

from __future__ import annotations

from pathlib import PurePosixPath

from runstate.conformance.notes import note, notes
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.logs.wal import WalLog
from runstate.logs.wal.lines import file_blocks
from runstate.storage.disk import File

root = PurePosixPath("/streams")


class CountedJoins(bytes):
    """Bytes that count what is copied when something is added to them."""

    copied = 0

    def __radd__(self, other: bytes) -> bytes:
        CountedJoins.copied += len(other)
        return bytes(other) + bytes(self)


def test_a_long_line_is_not_copied_again_with_each_chunk() -> None:
    class Chunks(File):
        def __init__(self) -> None: ...

        def read_at(self, offset: int, size: int) -> bytes:
            return CountedJoins(b"x" * size if offset + size < end else b"x" * (size - 1) + b"\n")

    end = 64 << 20
    (block,) = file_blocks(Chunks(), 0, end)
    assert [len(line) for line in block.lines] == [end - 1]
    assert CountedJoins.copied < end


def test_an_event_of_many_megabytes_is_found_among_small_ones() -> None:
    disk = SimulatedDisk()
    texts = ["a", "x" * (5 << 20), "b", ',"flush":true' * 100_000, "c"]
    with WalLog(root, disk=disk) as log:
        for number, text in enumerate(texts):
            log.append("s", [note(f"k{number}", text)])
        whole = log.read("s")
    reads = disk.calls["read"]
    with WalLog(root, disk=disk) as log:
        for after_seq in range(6):
            assert log.read("s", after_seq=after_seq) == whole[after_seq:]
        assert list(log.verify("s")) == []
        assert log.append("s", notes("new"))[0].seq == 6
    assert disk.calls["read"] - reads < 1000
