"""How long a worker is believed to be alive: as long as somebody holds it, or until its lease runs out.

Leases are measured by the monotonic clock and live in memory. After a restart every worker on record has a new one, and
whoever does not take it up in time is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView

import msgspec

from runstate.errors import InvalidTransition, LogBusy

Clock = Callable[[], float]


class Lease(msgspec.Struct, eq=False):
    """One worker's. Equal to itself alone: another start of the same worker is another lease."""

    key: str
    lasts_s: float | None
    """None: until it is given back by whoever holds it."""
    ends: float | None = None


class Leases:
    def __init__(self, lasts_s: float, clock: Clock) -> None:
        self._lasts_s, self._clock = lasts_s, clock
        self._found: dict[str, Lease] = {}

    def grant(self, key: str, *, held: bool = False, lasts_s: float | None = None) -> Lease:
        """A new lease for a worker, in place of the one it had. One that is `held` does not run out."""
        lease = Lease(key, None if held else lasts_s or self._lasts_s)
        self._found[key] = lease
        self._extend(lease)
        return lease

    def renew(self, key: str, lease: Lease | None) -> None:
        """The worker has been heard of: by the holder of its lease, or by its name alone.

        Raises:
            InvalidTransition: it is gone, or another one of that name is at work.
        """
        found = self._found.get(key)
        if found is None:
            raise InvalidTransition(f"There is no worker {key!r}: it was never started, or is gone", worker=key)
        if found.lasts_s is None and lease is None:
            raise InvalidTransition(f"The worker {key!r} belongs to whoever started it", worker=key)
        if lease is not None and found is not lease:
            raise InvalidTransition(f"This worker {key!r} is gone, and another one was started since", worker=key)
        self._extend(found)

    def check_free(self, key: str) -> None:
        """
        Raises:
            LogBusy: somebody holds the worker.
        """
        found = self._found.get(key)
        if found is not None and found.lasts_s is None:
            raise LogBusy(f"The worker {key!r} is at work; stop it, or choose another name", worker=key)

    def follow(self, keys: Iterable[str]) -> None:
        """Let exactly these workers have leases: who has none gets one, and who is not there loses its own."""
        known = set(keys)
        for key in self._found.keys() - known:
            del self._found[key]
        for key in known - self._found.keys():
            self.grant(key)

    def keys(self) -> KeysView[str]:
        """All workers that have a lease."""
        return self._found.keys()

    def holds(self, lease: Lease) -> bool:
        return self._found.get(lease.key) is lease

    def held(self) -> list[str]:
        """The workers that somebody holds."""
        return [lease.key for lease in self._found.values() if lease.lasts_s is None]

    def expired(self) -> list[str]:
        """The workers whose lease has run out."""
        now = self._clock()
        return [lease.key for lease in self._found.values() if lease.ends is not None and lease.ends <= now]

    def next_end_s(self) -> float | None:
        """After how many seconds the next lease runs out."""
        ends = [lease.ends for lease in self._found.values() if lease.ends is not None]
        return max(0.0, min(ends) - self._clock()) if ends else None

    def _extend(self, lease: Lease) -> None:
        lease.ends = None if lease.lasts_s is None else self._clock() + lease.lasts_s
