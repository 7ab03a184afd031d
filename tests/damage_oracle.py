"""What must hold for every damage to every log: no wrong answer, no contradiction, nothing lost that can be proven.

`check_reads` and `check_repair` ask a log, `Commands` asks the commands of the command line, with their exit codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.commands import Cli, Outcome

from runstate.errors import LogDamaged
from runstate.logs.log import EventLog, Finding, Record
from runstate.models.model import Draft

beyond_streams = ("snapshot.", "blob.")
"""Damage that a repair of the log leaves: snapshots are rebuilt by the command, a blob is gone for good."""


@dataclass(frozen=True)
class Subject:
    """A log that was damaged."""

    open: Callable[[], EventLog]
    content: Callable[[], object]
    """All that is stored, to compare."""
    right: dict[str, list[Record]]
    """Its streams as they were before."""
    new: Callable[[str], Draft]
    what: str
    """What was done to it."""
    not_repaired: tuple[str, ...] = beyond_streams


def damage_in(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "damage"]


def read_all(log: EventLog, stream: str) -> tuple[list[Record], LogDamaged | None]:
    """What can be read, one by one, up to the first refusal."""
    found: list[Record] = []
    try:
        while page := log.read(stream, after_seq=found[-1].seq if found else 0, limit=1):
            found += page
    except LogDamaged as error:
        return found, error
    return found, None


def is_part(found: list[Any], right: list[Any]) -> bool:
    """Whether all of it is right, and in the right order; some may be missing."""
    rest = iter(right)
    return all(one in rest for one in found)


def check_reads(subject: Subject) -> list[Finding]:
    """No event is wrong, and none is missing unless `verify` reports damage. Returns what it finds."""
    with subject.open() as log:
        findings = list(log.verify())
        damaged = {finding.stream for finding in damage_in(findings)}
        for stream, right in subject.right.items():
            found, error = read_all(log, stream)
            assert is_part(found, right), (subject.what, stream, [(r.seq, r.key) for r in found])
            if error is not None or found != right:
                assert {stream, None} & damaged, (subject.what, stream, error, findings)
    return findings


def check_repair(subject: Subject, stream: str, *, salvage: bool) -> tuple[list[Finding], list[Record]]:
    """A repair does what its dry run says, and then the stream is read, verified and appended to."""
    what, before = (subject.what, salvage), subject.content()
    with subject.open() as log:
        would = log.repair(stream, dry_run=True, salvage=salvage)
        assert subject.content() == before, what
        assert log.repair(stream, salvage=salvage) == would, what
    with subject.open() as log:
        left = damage_in(list(log.verify(stream)))
        assert [finding for finding in left if not finding.code.startswith(subject.not_repaired)] == [], what
        found, error = read_all(log, stream)
        assert error is None, (what, error)
        for finding in damage_in(would):
            assert finding.details["kept"] == len(found), (what, finding)
        (appended,) = log.append(stream, [subject.new(stream)])
        assert appended.seq == (found[-1].seq if found else 0) + 1, what
    return would, found


# --- through the commands --------------------------------------------------------------------------------------------


@dataclass
class Commands:
    """Asks the commands about one log, first when it is whole."""

    cli: Cli
    url: str
    streams: list[str]
    not_repaired: tuple[str, ...]
    """How the codes of damage begin that repair cannot help with."""
    options: tuple[str, ...] = ()
    right: dict[tuple[str, ...], Outcome] = field(default_factory=dict)
    copies: int = 0
    is_warned: bool = False
    """Whether `verify` has given warnings: the model of a stream may be forgotten."""

    def ask(self, *command: str) -> Outcome:
        outcome = self.cli(command[0], self.url, *command[1:], "--json", *self.options)
        assert outcome.code in (0, 1, 2, 3, 4), outcome
        return outcome

    def learn(self) -> None:
        """Keep the answers of the whole log."""
        reads = [("fetch", name) for name in self.streams] + [("snapshot", name) for name in self.streams]
        for command in (*reads, ("tail",), ("streams",), ("verify",), ("replay", "--check")):
            self.right[command] = self.ask(*command)
        assert [self.right[command].code for command in reads] == [0] * len(reads), self.right
        assert self.right["verify",].code == self.right["replay", "--check"].code == 0, self.right

    def verify(self, what: str) -> dict[str | None, set[str]] | None:
        """By stream, the codes of what is damaged; None if the log cannot be opened at all."""
        verified = self.ask("verify")
        if verified.err.startswith("{"):
            assert verified.code in (1, 2, 3), (what, verified)
            return None
        damaged: dict[str | None, set[str]] = {}
        self.is_warned = any(row["severity"] == "warning" for row in verified.rows)
        for row in verified.rows:
            if row["severity"] == "damage":
                damaged.setdefault(row.get("stream"), set()).add(row["code"])
        assert verified.code == bool(damaged), (what, verified)
        return damaged

    def check(self, what: str, *, is_repaired: bool = False) -> dict[str | None, set[str]] | None:
        """No command gives a wrong answer, and none gives less without `verify` reporting it."""
        damaged = self.verify(what)
        for name in self.streams:
            # Damage of no stream may be of any; that of a stream that never was is of one that was renamed.
            known = (
                damaged is None
                or is_repaired
                or bool({name, None} & damaged.keys() or damaged.keys() - {*self.streams})
            )
            fetched, right = self.ask("fetch", name), self.right["fetch", name]
            assert is_part(fetched.rows, right.rows), (what, name, fetched)
            assert known or (fetched.code, fetched.rows) == (0, right.rows), (what, name, fetched, damaged)
            shown, right = self.ask("snapshot", name), self.right["snapshot", name]
            events = {code for code in (damaged or {}).get(name, ()) if not code.startswith(beyond_streams)}
            excused = damaged is None or is_repaired or events or damaged.keys() - {*self.streams}
            assert excused or (shown.code, shown.out) == (0, right.out), (what, name, shown, damaged)
            assert shown.code == 0 or known, (what, name, shown)
        tailed, right = self.ask("tail"), self.right["tail",]
        if right.code == 0 and not is_repaired:
            assert all(tailed.rows.count(row) == 1 for row in tailed.rows), (what, tailed)
            assert all(row in right.rows for row in tailed.rows), (what, tailed)
            assert damaged != {} or (tailed.code, tailed.rows) == (0, right.rows), (what, tailed)
        listed, right = self.ask("streams"), self.right["streams",]
        is_excused = damaged != {} or is_repaired or self.is_warned
        assert is_excused or (listed.code, listed.rows) == (0, right.rows), (what, listed, right)
        checked = self.ask("replay", "--check")
        assert checked.code in ((0, 1) if damaged is not None else (1, 2, 3)), (what, checked)
        codes = {code for found in (damaged or {}).values() for code in found}
        assert checked.code or not any(code.startswith("snapshot.") for code in codes), (what, checked, codes)
        self._check_copy(what, damaged, is_repaired)
        return damaged

    def _check_copy(self, what: str, damaged: dict[str | None, set[str]] | None, is_repaired: bool) -> None:
        self.copies += 1
        place = Path(f"copy-{self.copies}.db").absolute()
        copied = self.cli("copy", self.url, f"sqlite:{place}", "--json")
        assert copied.code in (0, 1, 2, 3), (what, copied)
        assert copied.code or damaged is not None, (what, copied)
        if place.exists():
            verified = self.cli("verify", f"sqlite:{place}", "--json", *self.options)
            assert not any(row["code"].startswith("log.") for row in verified.rows), (what, verified)
        for name in self.streams:
            fetched, right = self.cli("fetch", f"sqlite:{place}", name, "--json"), self.right["fetch", name]
            assert is_part(fetched.rows, right.rows), (what, name, fetched)
            known = damaged is None or is_repaired or damaged.keys() - {*self.streams} or name in damaged or copied.code
            assert known or fetched.rows == right.rows, (what, name, copied, fetched)
        place.unlink(missing_ok=True)

    def check_repair(self, what: str, content: Callable[[], object], *, salvage: bool) -> dict[str, int]:
        """`repair` does what `--dry-run` says, its exit code is right, and afterwards all commands agree."""
        option = ("--salvage",) if salvage else ()
        before = content()
        would = self.ask("repair", "--dry-run", *option)
        assert content() == before, what
        done = self.ask("repair", *option)
        assert (done.code, done.err.startswith("{")) == (would.code, would.err.startswith("{")), (what, would, done)
        assert _plans(done) == _plans(would), (what, would, done)
        if done.err.startswith("{"):
            return {}
        assert done.code in (0, 1), (what, done)
        left = self.check(what, is_repaired=True)
        assert bool(left) == done.code, (what, done, left)
        codes = {code for found in (left or {}).values() for code in found}
        assert all(code.startswith(self.not_repaired) for code in codes), (what, done, left)
        if not left:
            again = self.ask("repair", *option)
            assert (again.code, again.rows) == (0, []), (what, again)
            assert not done.rows or self.ask("replay", "--check").code == 0, what
        kept: dict[str, int] = {}
        for name in self.streams:
            fetched = self.ask("fetch", name)
            kept[name] = len(fetched.rows)
            # A repair may begin a stream with a checkpoint, and remove one of which nothing is left.
            answers = (0, 3) if not (left or {}).keys() & {name, None} else (0, 1, 3)
            assert fetched.code in answers or "log.truncated" in fetched.err, (what, fetched)
        for row in done.rows:
            if row["code"] == "log.cut_back":
                assert row["details"]["kept"] == kept[row["stream"]], (what, row)
        return kept


def _plans(outcome: Outcome) -> list[Any]:
    return [{name: value for name, value in row.items() if name != "message"} for row in outcome.rows]
