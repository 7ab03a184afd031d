"""The keys that tokens are signed with: one file, local to its machine, that its owner alone can read.

There is a current key, which signs, and the one before it, which is still accepted; `rotate` moves them on. Each
session is signed for with a key of its own, derived from those. `renew` changes that one for good: what was signed for
the session before, on this machine or wherever the keyring was copied from, is void then. So begins a session that is
imported, or created under a name that another may have had before.
"""

from __future__ import annotations

import hmac
import os
import secrets
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock as Mutex
from threading import RLock
from time import monotonic, sleep

import msgspec

from runstate.errors import LogBusy, LogFailed
from runstate.models.session.ids import SessionId
from runstate.runtimes.session.refusals import KeyringDamaged, KeyringExposed
from runstate.storage.directories import make_directories
from runstate.storage.disk import FILE_MODE, Disk, Lock, LockBusy, RealDisk, replace_durably, temp_target

_key_bytes = 32
_patience_seconds = 1.0
"""For another process that holds the keyring: as long as a session takes to begin, it does."""


class _Keys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file, as JSON. Keys are hex."""

    version: int = 1
    current: str
    previous: str | None = None
    salts: dict[str, str] = {}
    """By session id, for those that were renewed."""


class Keyring:
    """Signs for sessions. Safe to share between threads; a change by another process is seen at once."""

    def __init__(self, path: str | Path, *, disk: Disk | None = None) -> None:
        """The keyring in the file at `path`, which is made with the first signature if it is not there."""
        self.path = Path(path)
        self._disk = disk or RealDisk()
        self._reading, self._changing = Mutex(), RLock()
        self._is_held = False
        self._seen: tuple[str, _Keys] | None = None

    def sign(self, session_id: SessionId, text: bytes) -> bytes:
        """HMAC-SHA-256 of `text`, with the session's current key.

        Raises:
            KeyringExposed, KeyringDamaged: the file must be mended first.
            LogBusy: somebody is making the file; try again.
        """
        keys = self._ready()
        return _hmac(keys.current, keys.salts.get(session_id, ""), text)

    def prepare(self) -> None:
        """Make sure that it can sign, before something is written that is of no use without a signature.

        Raises:
            KeyringExposed, KeyringDamaged: the file must be mended first.
            LogBusy: somebody is making the file; try again.
        """
        self._ready()

    def is_signed(self, session_id: SessionId, text: bytes, signature: bytes) -> bool:
        """Whether the current key or the previous one gave that signature. Takes the same time for every wrong one.

        Raises:
            KeyringExposed, KeyringDamaged: the file must be mended first.
        """
        keys = self._read()
        if keys is None:
            return False
        salt = keys.salts.get(session_id, "")
        # Both are always computed: how long the answer takes tells nothing.
        matches = [
            hmac.compare_digest(_hmac(key, salt, text), signature) for key in (keys.current, keys.previous or "")
        ]
        return matches[0] or (matches[1] and keys.previous is not None)

    def rotate(self) -> None:
        """Sign with a new key from now on. What the key before the last signed is void.

        Raises:
            KeyringExposed, KeyringDamaged, LogBusy: nothing was changed.
        """
        self._change(
            lambda keys: (
                _Keys(current=_fresh())
                if keys is None
                else msgspec.structs.replace(keys, current=_fresh(), previous=keys.current)
            )
        )

    def renew(self, session_id: SessionId) -> None:
        """Make void whatever was signed for this session.

        Raises:
            KeyringExposed, KeyringDamaged, LogBusy: nothing was changed.
        """

        def renewed(keys: _Keys | None) -> _Keys:
            keys = keys or _Keys(current=_fresh())
            return msgspec.structs.replace(keys, salts=keys.salts | {session_id: _fresh()})

        self._change(renewed)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else changes the keyring until the block ends: no other thread, and no other process.

        Raises:
            LogBusy: another process keeps holding it; try again.
        """
        with self._changing:
            if self._is_held:
                yield
                return
            lock = self._locked()
            self._is_held = True
            try:
                self._sweep()
                yield
            finally:
                self._is_held = False
                lock.release()

    # --- the file --------------------------------------------------------------------------------------

    def _ready(self) -> _Keys:
        return self._read() or self._change(lambda keys: keys or _Keys(current=_fresh()))

    def _read(self) -> _Keys | None:
        """The keys on file, None where there is no file yet. A file that has not changed is not read again."""
        with self._reading:
            try:
                _check_private(self.path)
                stamp = self._disk.stamp(self.path)[1]
                if self._seen is None or self._seen[0] != stamp:
                    self._seen = (stamp, _decoded(self.path, self._disk.read(self.path)))
                return self._seen[1]
            except FileNotFoundError:
                return None
            except OSError as error:
                raise LogFailed(f"The keyring {self.path} cannot be read: {error}") from error

    def _change(self, change: Callable[[_Keys | None], _Keys]) -> _Keys:
        """Replace the file as a whole, one process after the other."""
        with self.held(), self._changed():
            keys = change(self._read())
            replace_durably(self._disk, self.path, msgspec.json.encode(keys) + b"\n")
            return keys

    def _locked(self) -> Lock:
        """The kernel lock, as soon as nobody else has it."""
        until = monotonic() + _patience_seconds
        with self._changed():
            make_directories(self._disk, self.path.parent)
            while True:
                try:
                    return self._disk.lock(self.path.with_name(f"{self.path.name}.lock"))
                except LockBusy as error:
                    if monotonic() > until:
                        raise LogBusy(f"Another process is changing the keyring {self.path}; try again") from error
                sleep(_patience_seconds / 100)

    def _sweep(self) -> None:
        """Remove what a killed process was writing: there are keys in it. Nobody writes now, the lock is ours."""
        with self._changed():
            for name in self._disk.names(self.path.parent):
                if temp_target(name) == self.path.name:
                    self._disk.remove(self.path.with_name(name))

    @contextmanager
    def _changed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LogFailed(f"The keyring {self.path} cannot be changed: {error}") from error


def _check_private(path: Path) -> None:
    """
    Raises:
        KeyringExposed: with the command that mends it.
        FileNotFoundError: there is no file.
    """
    mode = os.stat(path).st_mode & 0o777
    if mode & ~FILE_MODE:
        raise KeyringExposed(
            f"Others can use the keyring {path} (mode {mode:04o}), and so could make tokens; "
            f"chmod 600 {shlex.quote(str(path))}, and rotate its keys twice if somebody may have",
            path=str(path),
            mode=f"{mode:04o}",
        )


def _decoded(path: Path, data: bytes) -> _Keys:
    try:
        keys = msgspec.json.decode(data, type=_Keys)
        lengths = {len(bytes.fromhex(key)) for key in (keys.current, keys.previous or keys.current)}
    except (msgspec.DecodeError, ValueError) as error:
        raise KeyringDamaged(f"{path} is no keyring: {error}", path=str(path)) from error
    if keys.version != 1 or lengths != {_key_bytes}:
        raise KeyringDamaged(f"{path} is no keyring of a version that is known here", path=str(path))
    return keys


def _fresh() -> str:
    return secrets.token_hex(_key_bytes)


def _hmac(key: str, salt: str, text: bytes) -> bytes:
    own = hmac.digest(bytes.fromhex(key), f"session:{salt}".encode(), "sha256")
    return hmac.digest(own, text, "sha256")
