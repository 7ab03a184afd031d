"""Columns of many rows as arrays in Postgres' binary format.

The driver's own arrays look at every element's type, and cost more than all the rest of a large append.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from psycopg.adapt import Dumper
from psycopg.pq import Format

_length = struct.Struct("!I").pack
_head = struct.Struct("!5I").pack


class Texts:
    """A `text[]`. Postgres itself refuses what is no text."""

    __slots__ = ("elements",)
    array_oid, element_oid = 1009, 25

    def __init__(self, elements: Sequence[str]) -> None:
        self.elements = elements

    def packed(self) -> bytes:
        return b"".join([_length(len(e)) + e for e in [element.encode() for element in self.elements]])


class Blobs:
    """A `bytea[]`."""

    __slots__ = ("elements",)
    array_oid, element_oid = 1001, 17

    def __init__(self, elements: Sequence[bytes]) -> None:
        self.elements = elements

    def packed(self) -> bytes:
        return b"".join([_length(len(element)) + element for element in self.elements])


class Numbers:
    """A `bigint[]`."""

    __slots__ = ("elements",)
    array_oid, element_oid = 1016, 20

    def __init__(self, elements: Sequence[int]) -> None:
        self.elements = elements

    def packed(self) -> bytes:
        sized = [part for element in self.elements for part in (8, element)]
        return struct.pack("!" + "Iq" * len(self.elements), *sized)


class _Dumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Texts | Blobs | Numbers) -> bytes:
        dimensions = 1 if obj.elements else 0
        if not dimensions:
            return _head(0, 0, obj.element_oid, 0, 1)[:12]
        # One dimension, no NULL among the elements, their type, how many they are, and the number of the first.
        return _head(1, 0, obj.element_oid, len(obj.elements), 1) + obj.packed()


class TextsDumper(_Dumper):
    oid = Texts.array_oid


class BlobsDumper(_Dumper):
    oid = Blobs.array_oid


class NumbersDumper(_Dumper):
    oid = Numbers.array_oid


dumpers: tuple[tuple[type, type[Dumper]], ...] = ((Texts, TextsDumper), (Blobs, BlobsDumper), (Numbers, NumbersDumper))
"""For a connection to register."""
