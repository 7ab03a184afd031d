"""Changes between two JSON documents."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.changes import Change, changes


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": 1}, {"a": 2}, Change("/a", "changed", 1, 2)),
        ({}, {"a": 1}, Change("/a", "added", after=1)),
        ({"a": 1}, {}, Change("/a", "removed", before=1)),
        ({}, {"a": None}, Change("/a", "added", after=None)),
        ({"a": None}, {"a": 0}, Change("/a", "changed", None, 0)),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}}, Change("/a/b/1/c", "changed", 2, 3)),
        ([1, 2], [1, 2, 3], Change("/2", "added", after=3)),
        ([1, 2, 3], [1, 2], Change("/2", "removed", before=3)),
        ({"a": []}, {"a": {}}, Change("/a", "changed", [], {})),
        ({"a": 1}, {"a": True}, Change("/a", "changed", 1, True)),
        ({"a": 0}, {"a": False}, Change("/a", "changed", 0, False)),
        ({"a/b": 1}, {"a/b": 2}, Change("/a~1b", "changed", 1, 2)),
        ({"a~b": 1}, {"a~b": 2}, Change("/a~0b", "changed", 1, 2)),
        ({"~1": 1}, {"~1": 2}, Change("/~01", "changed", 1, 2)),
        ({"": 1}, {"": 2}, Change("/", "changed", 1, 2)),
        (1, 2, Change("", "changed", 1, 2)),
        ([], {}, Change("", "changed", [], {})),
    ],
    ids=str,
)
def test_one_difference_is_one_change(before: Any, after: Any, found: Change) -> None:
    assert changes(before, after) == [found]


def test_changes_stand_in_the_order_of_the_document_and_additions_last() -> None:
    found = changes({"z": 1, "a": [1, 2], "gone": 0}, {"new": 5, "a": [2, 2, 3], "z": 2})
    assert [change.path for change in found] == ["/z", "/a/0", "/a/2", "/gone", "/new"]


def test_a_change_is_written_without_what_it_lacks() -> None:
    written = [msgspec.to_builtins(change) for change in changes({"a": 1, "b": 2}, {"b": 3, "c": 4})]
    assert written == [
        {"path": "/a", "kind": "removed", "before": 1},
        {"path": "/b", "kind": "changed", "before": 2, "after": 3},
        {"path": "/c", "kind": "added", "after": 4},
    ]


names = st.sampled_from(["", "a", "b", "a/b", "~", "~1", "0"])
documents = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@given(documents)
@settings(max_examples=60, deadline=None)
def test_a_document_does_not_differ_from_itself(document: Any) -> None:
    assert changes(document, deepcopy(document)) == []


@given(documents, documents)
@settings(max_examples=150, deadline=None)
def test_the_changes_lead_from_one_document_to_the_other(before: Any, after: Any) -> None:
    result = applied(deepcopy(before), changes(before, after))
    assert (result, msgspec.json.encode(result, order="sorted")) == (after, msgspec.json.encode(after, order="sorted"))


def applied(document: Any, found: list[Change]) -> Any:
    # Removals from a list go last to first, so that no place shifts under the next one.
    for change in [c for c in found if c.kind != "removed"] + [c for c in reversed(found) if c.kind == "removed"]:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in change.path.split("/")[1:]]
        if not parts:
            return change.after
        holder = document
        for part in parts[:-1]:
            holder = holder[int(part) if isinstance(holder, list) else part]
        place: Any = int(parts[-1]) if isinstance(holder, list) else parts[-1]
        if change.kind == "removed":
            del holder[place]
        elif isinstance(holder, list) and change.kind == "added":
            holder.append(change.after)
        else:
            holder[place] = change.after
    return document
