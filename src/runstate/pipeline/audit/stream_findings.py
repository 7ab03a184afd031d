"""What an audit has to say about one stream: each kind of finding one by one up to a bound, and then in numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import msgspec

from runstate.errors import LogDamaged, RunstateError
from runstate.logs.log import Finding

told_max = 100
"""Findings of one kind in one stream that are told one by one. The others are counted."""


class Told:
    """The findings of one stream, or of what is no stream."""

    def __init__(self, stream: str | None) -> None:
        self._stream = stream
        self._findings: list[Finding] = []
        self._counts: Counter[tuple[Literal["damage", "warning"], str]] = Counter()
        self._log_told: set[tuple[str, int | None]] = set()

    def pass_on(self, finding: Finding) -> None:
        """Tell what the log itself has found. What it has told of is not told again in other words."""
        self._log_told.add((finding.code, finding.seq))
        if finding.severity == "damage":
            self._log_told.add(("damage", finding.seq))
        self._add(msgspec.structs.replace(finding, stream=finding.stream or self._stream))

    def log_told(self, code: str, seq: int | None) -> bool:
        """Whether the log has found this there itself; `damage` stands for any."""
        return (code, seq) in self._log_told

    def damage(self, code: str, message: str, seq: int | None = None, /, **details: Any) -> None:
        self._add(Finding(code=code, message=message, stream=self._stream, seq=seq, details=details))

    def warn(self, code: str, message: str, seq: int | None = None, /, **details: Any) -> None:
        finding = Finding(code=code, message=message, stream=self._stream, seq=seq, details=details)
        self._add(msgspec.structs.replace(finding, severity="warning"))

    def failed(self, error: Exception) -> None:
        """Tell that reading had to stop."""
        seq = error.details.get("seq") if isinstance(error, RunstateError) else None
        if isinstance(error, LogDamaged) and self.log_told("damage", seq):
            return
        if not isinstance(error, RunstateError):
            self.damage("audit.failed", f"The audit could not go on here: {error!r}")
            return
        details = {name: value for name, value in error.details.items() if name not in ("stream", "seq")}
        # As a finding of the log's: when its own check has met this, the walk will meet it again.
        self.pass_on(Finding(code=error.code, message=str(error), seq=seq, details=details))

    def findings(self) -> list[Finding]:
        """All of them; those that were only counted in one finding for each kind, `andMore` in its details."""
        more = [
            Finding(
                code=code,
                message=f"and {count - told_max} more of the same",
                severity=severity,
                stream=self._stream,
                details={"andMore": count - told_max},
            )
            for (severity, code), count in self._counts.items()
            if count > told_max
        ]
        return self._findings + more

    def _add(self, finding: Finding) -> None:
        kind = finding.severity, finding.code
        self._counts[kind] += 1
        if self._counts[kind] <= told_max:
            self._findings.append(finding)
