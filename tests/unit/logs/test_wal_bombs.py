"""Small compressed files that hold very much: reading them takes the memory of one piece, measured in a process."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from runstate.conformance.notes import notes
from runstate.logs.log import StoredSnapshot
from runstate.logs.wal import WalLog
from runstate.logs.wal.options import WalOptions
from runstate.models.canonical import digest

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux")
content_bytes = 128 << 20
above_bytes_max = 48 << 20
long_line = b'{"seq":1,"event":"%b"}\n' % (b"a" * ((1 << 20) - 23))


def gzipped(piece: bytes, count: int) -> bytes:
    """A gzip file that holds a piece many times, made without compressing or holding all of it."""
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = 0
    for _ in range(count):
        crc = zlib.crc32(piece, crc)
    end = crc.to_bytes(4, "little") + (len(piece) * count % 2**32).to_bytes(4, "little")
    return gzip.compress(b"")[:10] + block * count + b"\x03\x00" + end


def zstd(piece: bytes, count: int) -> bytes:
    return zstandard.compress(piece * count)


read_log = """
from pathlib import Path
from runstate.errors import RunstateError
from runstate.logs.wal import WalLog
import zstandard
def peak():
    # Not getrusage: that begins with the peak of the process which started this one.
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
with WalLog(Path("log")) as log:
    before = peak()
    codes = {finding.code for finding in log.verify("s") if finding.severity == "damage"}
    for read in (lambda: log.read("s"), lambda: log.load_snapshot("s", "notes")):
        try:
            read()
        except RunstateError:
            pass
    print(peak() - before, *codes)
"""


def memory_to_read(directory: Path) -> tuple[int, list[str]]:
    """How many bytes a process takes to verify and read the log, beyond what it needs to open it; what it finds."""
    done = subprocess.run([sys.executable, "-c", read_log], cwd=directory, capture_output=True, text=True, check=True)
    kibibytes, *codes = done.stdout.split()
    return int(kibibytes) << 10, codes


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with WalLog(tmp_path / "log", options=WalOptions(history="archive", compress="zstd")) as log:
        log.append("s", notes("a", "b"))
        for _ in range(2):
            log.checkpoint("s", StoredSnapshot("notes", 1, 2, digest(b"[]"), b"[]"))
    return tmp_path / "log" / "s"


@pytest.mark.parametrize(
    ("pack", "kind"),
    [
        (gzipped, "zeros"),
        pytest.param(gzipped, "lines", marks=pytest.mark.slow),
        (zstd, "zeros"),
        pytest.param(zstd, "lines", marks=pytest.mark.slow),
        pytest.param(zstd, "one line", marks=pytest.mark.slow),
    ],
)
def test_a_segment_that_holds_very_much_is_read_piece_by_piece(
    log: Path, pack: Callable[[bytes, int], bytes], kind: str
) -> None:
    piece = {"zeros": bytes(1 << 20), "lines": long_line, "one line": long_line.strip()}[kind]
    data = pack(piece, content_bytes // len(piece))
    last_seq = 10**9 if kind == "lines" else 1
    (segment,) = (log / "archive").iterdir()
    segment.unlink()
    name = f"{1:016d}-{last_seq:016d}-{digest(data)}.jsonl.{'gz' if pack is gzipped else 'zst'}"
    (log / "archive" / name).write_bytes(data)
    taken, codes = memory_to_read(log.parents[1])
    assert taken < above_bytes_max + (content_bytes if kind == "one line" else 0)
    assert kind == "lines" or codes == ["archive.digest_mismatch"]


def test_a_snapshot_that_holds_no_state_is_refused_by_its_beginning(log: Path) -> None:
    (log / "snapshot.notes.json.zst").write_bytes(zstd(bytes(1 << 20), content_bytes >> 20))
    taken, codes = memory_to_read(log.parents[1])
    assert taken < above_bytes_max
    assert codes == ["snapshot.corrupt"]


@pytest.mark.slow
def test_a_frame_that_needs_a_large_window_is_refused(log: Path) -> None:
    window = zstandard.ZstdCompressionParameters.from_level(3, window_log=27, enable_ldm=True)
    packed = zstandard.ZstdCompressor(compression_params=window).compress(b"{" + bytes(content_bytes))
    (log / "snapshot.notes.json.zst").write_bytes(packed)
    taken, codes = memory_to_read(log.parents[1])
    assert taken < above_bytes_max
    assert codes == ["snapshot.corrupt"]
