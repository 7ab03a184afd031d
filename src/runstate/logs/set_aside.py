"""Files that recovery and repair have set aside: `<name>.<word>-N` beside the file that they were, never overwritten.

torn         what a crash has left of an append
damaged      a file, or what stood behind the damage in it, as it was before `repair`
salvaged     events behind the damage that are proven, and that their stream cannot hold
unproven     which events a salvage has put back although nothing proves their bytes
quarantined  an intact event that an operator has taken out, and those behind it, as records
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Literal, get_args

from runstate.logs.log import Finding
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk

SET_ASIDE = "log.set_aside"
Word = Literal["torn", "damaged", "salvaged", "unproven", "quarantined"]
_words = "|".join(get_args(Word))
pattern = rf"\.(?:{_words})-\d+"
_name = re.compile(rf".+\.({_words})-\d+")
_meaning = {
    "torn": "holds what a crash has left of an append",
    "damaged": "holds what a repair has taken out",
    "salvaged": "holds events behind the damage that are proven, and that their stream cannot hold",
    "unproven": "tells which events a salvage has kept without proof: compare them with a backup",
    "quarantined": "holds an event that was quarantined, and those behind it; 'runstate append' takes them back",
}
_listed_max = 4


def free_number(disk: Disk, directories: Iterable[PurePath], *words: Word) -> int:
    """A number that no file of these words in these directories has, so that none is overwritten."""
    names = [name for path in directories for name in names_in(disk, path)]
    taken = {name.rpartition(f".{word}-")[2] for name in names for word in words}
    return next(number for number in range(1, len(taken) + 2) if str(number) not in taken)


def list_set_aside(disk: Disk, stream: str, home: PurePath, *below: str) -> Iterator[Finding]:
    """A warning for each file that was set aside in a stream's directory, or in the named ones below it."""
    for directory, prefix in ((home, ""), *((home / name, f"{name}/") for name in below)):
        for name in names_in(disk, directory):
            if found := _name.fullmatch(name):
                yield Finding(
                    code=SET_ASIDE,
                    message=f"{prefix}{name} {_meaning[found[1]]}. Remove it when you no longer need it",
                    severity="warning",
                    stream=stream,
                    details={"file": f"{prefix}{name}"},
                )


def listed(paths: list[str]) -> str:
    """Paths in a message, which need not name all of them."""
    more = len(paths) - _listed_max
    return ", ".join(paths) if more < 2 else f"{', '.join(paths[:_listed_max])} and {more} more files"
