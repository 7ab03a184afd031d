"""The files of keys for seals: created for their owner alone, and refused when others can read them."""

from __future__ import annotations

import os
import secrets
import shlex
from pathlib import Path

from runstate.errors import InvalidSealKey
from runstate.logs.keyed_seals import SealKey
from runstate.storage.disk import RealDisk, write_new

_file_bytes_max = 4096


def create_key(path: Path) -> SealKey:
    """Write a new random key, as hex, to a new file with mode 0600.

    Raises:
        InvalidSealKey: the file exists; it was left untouched.
    """
    secret = secrets.token_hex(32).encode()
    disk = RealDisk()
    try:
        write_new(disk, path, secret + b"\n")
    except FileExistsError as error:
        raise InvalidSealKey(f"{path} exists and was left untouched; choose another name for the new key") from error
    disk.sync_directory(path.parent)
    return SealKey(secret)


def read_key(path: Path) -> SealKey:
    """The key in a file: its content without the line break at the end.

    Raises:
        InvalidSealKey: others can read or write the file, or it is too short or too long.
    """
    # The mode of the file that was opened, which is not necessarily the one that has this name a moment later.
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        if mode & 0o077:
            raise InvalidSealKey(
                f"Others can use the key {path} (mode {mode:04o}): make it private with "
                f"`chmod 600 {shlex.quote(str(path))}`, and create a new key if someone may have read it"
            )
        secret = file.read(_file_bytes_max + 1)
    if len(secret) > _file_bytes_max:
        raise InvalidSealKey(f"{path} is not a key: it has more than {_file_bytes_max} bytes")
    return SealKey(secret.rstrip(b"\r\n"))
