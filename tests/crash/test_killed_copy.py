"""A copy whose process is killed, again and again, and run again: nothing is lost, doubled or cut."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.log_urls import durable_schemes, servers, url_at

from runstate.conformance.notes import note, stored
from runstate.logs.log import EventLog, Finding, Record
from runstate.logs.registry import open_log

schemes = [scheme for scheme in durable_schemes() if scheme not in servers or scheme == "postgresql"]
streams, events, enough_halves = 12, 2200, 3


def fill(url: str) -> dict[str, list[Record]]:
    with open_log(url) as log:
        for number in range(streams):
            log.append(f"s{number:02}", [note(f"k{place}", "x" * (place % 300)) for place in range(events)])
        return everything(log)


def damage(log: EventLog) -> list[Finding]:
    """What a kill must never leave behind. A segment that it left without a line in the manifest is a warning."""
    return [finding for finding in log.verify() if finding.severity == "damage"]


def everything(log: EventLog) -> dict[str, list[Record]]:
    return {info.stream: stored(log, info.stream) for info in log.streams()}


def start_copy(source: str, target: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-u", "-m", "runstate", "copy", source, target, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", schemes)
def test_a_copy_that_is_killed_goes_on_and_ends_equal(tmp_path: Path, scheme: str) -> None:
    source, target = f"sqlite:{tmp_path}/source.db", url_at(scheme, tmp_path / "target")
    held, chance, finished, halves = fill(source), random.Random(scheme), 0, 0
    while halves < enough_halves and finished < streams - 2:
        with start_copy(source, target) as copy:
            assert copy.stdout is not None
            for _ in range(finished + 1):
                began = time.monotonic()
                copy.stdout.readline()
            # Not to wait for anything: the moment of the kill is being varied, over most of what a stream takes.
            time.sleep(chance.uniform(0, 0.7) * min(time.monotonic() - began, 0.1))
            copy.send_signal(signal.SIGKILL)
        assert copy.returncode == -signal.SIGKILL
        with open_log(target) as log:
            found = everything(log)
            assert damage(log) == []
        for stream, records in found.items():
            assert records == held[stream][: len(records)]
            halves += 0 < len(records) < events
        assert [len(found[f"s{number:02}"]) for number in range(finished + 1)] == [events] * (finished + 1)
        finished = sum(len(records) == events for records in found.values())
    with start_copy(source, target) as copy:
        out, err = copy.communicate()
    assert (copy.returncode, out.count(b"\n")) == (0, streams), err
    assert halves, "no kill has met a stream that was half copied"
    with open_log(target) as log:
        assert everything(log) == held
        assert damage(log) == []
