"""Tokens: handles to a node that can be given away. They are signed, and they are never the truth.

`st.v1.<payload>.<signature>` names a node, to look at; `ack.v1.…` names one attempt at its step, to advance from it.
The payload is the base64url (no padding) of RFC 8785 JSON with the ids; the signature is over the text before the last
dot. There is exactly one way to write a token down: change any bit of it, even one that base64 would ignore, and it
is refused.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TypeVar

import msgspec

from runstate.models.canonical import canonical, undecodable
from runstate.models.session.ids import AttemptId, NodeId, RunId, SessionId
from runstate.runtimes.session.keyring import Keyring
from runstate.runtimes.session.refusals import InvalidToken

token_characters_max = 4096
_form = re.compile(r"(st|ack)\.v1\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{43})", re.ASCII)


class StateToken(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A node, to be looked at."""

    session_id: SessionId
    run_id: RunId
    node_id: NodeId


class AckToken(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One attempt at a node's step, to be acknowledged. The same attempt always has the same outcome."""

    session_id: SessionId
    run_id: RunId
    node_id: NodeId
    attempt_id: AttemptId


T = TypeVar("T", bound=StateToken | AckToken)

_prefixes: dict[type, str] = {StateToken: "st", AckToken: "ack"}


def mint(keyring: Keyring, token: StateToken | AckToken) -> str:
    """The token, signed.

    Raises:
        KeyringExposed, KeyringDamaged, LogBusy: the keyring cannot be used now.
    """
    signed = f"{_prefixes[type(token)]}.v1.{_encoded(canonical(msgspec.to_builtins(token)))}"
    return f"{signed}.{_encoded(keyring.sign(token.session_id, signed.encode()))}"


def check(keyring: Keyring, text: str, kind: type[T]) -> T:
    """What a token says, if this keyring signed it.

    Raises:
        InvalidToken: it did not, or the token is of the other kind. Which of them it is, is not told.
        KeyringExposed, KeyringDamaged: the keyring cannot be used now.
    """
    form = _form.fullmatch(text) if len(text) <= token_characters_max else None
    if form is None or form[1] != _prefixes[kind]:
        raise InvalidToken(f"That is no {'state' if kind is StateToken else 'ack'} token")
    payload, signature = _decoded(form[2]), _decoded(form[3])
    try:
        token = msgspec.json.decode(payload, type=kind)
    except undecodable as error:
        raise InvalidToken() from error
    if not keyring.is_signed(token.session_id, text.rpartition(".")[0].encode(), signature):
        raise InvalidToken()
    return token


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """
    Raises:
        InvalidToken: other text would decode to the same bytes; only one of them is the token.
    """
    if len(text) % 4 == 1:
        raise InvalidToken()
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _encoded(data) != text:
        raise InvalidToken()
    return data
