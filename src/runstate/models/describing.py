"""Events in a few words, out of their members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runstate.models.model import Description


def describe_members(members: Mapping[str, Any], *subject_names: str) -> Description:
    """The members of an event: the first text under one of the names is its subject, the others are its details."""
    for name in subject_names:
        if isinstance(subject := members.get(name), str) and subject:
            return Description(subject, {n: value for n, value in members.items() if n != name})
    return Description("", dict(members))
