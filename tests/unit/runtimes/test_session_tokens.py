"""Tokens and the keyring: what was signed here is believed, and nothing else is."""

from __future__ import annotations

import base64
import json
import os
import stat
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.errors import LogBusy
from runstate.models.canonical import canonical
from runstate.models.session.ids import AttemptId, NodeId, RunId, SessionId
from runstate.runtimes.session import keyring as keyring_module
from runstate.runtimes.session.keyring import Keyring
from runstate.runtimes.session.refusals import InvalidToken, KeyringDamaged, KeyringExposed
from runstate.runtimes.session.tokens import AckToken, StateToken, check, mint
from runstate.storage.disk import RealDisk

session, run, node = SessionId("s-1"), RunId("r-1"), NodeId("n-1")
state = StateToken(session_id=session, run_id=run, node_id=node)
ack = AckToken(session_id=session, run_id=run, node_id=node, attempt_id=AttemptId("a-1"))


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    return Keyring(tmp_path_factory.mktemp("keys") / "keyring.json")


def test_a_token_says_what_it_was_made_for(keyring: Keyring) -> None:
    assert check(keyring, mint(keyring, state), StateToken) == state
    assert check(keyring, mint(keyring, ack), AckToken) == ack


def test_a_token_has_the_documented_form(keyring: Keyring) -> None:
    prefix, version, payload, _ = mint(keyring, ack).split(".")
    assert (prefix, version) == ("ack", "v1")
    ids = {"sessionId": "s-1", "runId": "r-1", "nodeId": "n-1", "attemptId": "a-1"}
    assert base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)) == canonical(ids)


def test_the_same_token_is_the_same_text(keyring: Keyring) -> None:
    assert mint(keyring, state) == mint(keyring, state)


@pytest.mark.parametrize("token", [state, ack], ids=["state", "ack"])
def test_every_single_changed_bit_is_refused(keyring: Keyring, token: StateToken | AckToken) -> None:
    text = mint(keyring, token).encode()
    for at in range(len(text) * 8):
        changed = bytearray(text)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises(InvalidToken):
            check(keyring, changed.decode("latin-1"), type(token))


def test_bits_that_base64_ignores_are_not_ignored(keyring: Keyring) -> None:
    text = mint(keyring, state)
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    same_bytes = text[:-1] + alphabet[alphabet.index(text[-1]) ^ 1]
    signature, other = (t.rpartition(".")[2] for t in (text, same_bytes))
    assert base64.urlsafe_b64decode(signature + "=") == base64.urlsafe_b64decode(other + "=")
    with pytest.raises(InvalidToken):
        check(keyring, same_bytes, StateToken)


@given(text=st.text(max_size=200) | st.from_regex(r"(st|ack)\.v1\.[\w-]{0,80}\.[\w-]{43}"))
@settings(deadline=None, max_examples=200)
def test_no_other_text_is_a_token(text: str, keyring: Keyring) -> None:
    kinds: tuple[type[StateToken | AckToken], ...] = (StateToken, AckToken)
    for kind in kinds:
        with pytest.raises(InvalidToken):
            check(keyring, text, kind)


def test_a_token_of_one_kind_is_none_of_the_other(keyring: Keyring) -> None:
    with pytest.raises(InvalidToken):
        check(keyring, mint(keyring, state), AckToken)
    with pytest.raises(InvalidToken):
        check(keyring, mint(keyring, ack), StateToken)


def test_the_signature_covers_the_kind(keyring: Keyring) -> None:
    text = mint(keyring, ack)
    with pytest.raises(InvalidToken):
        check(keyring, "st" + text.removeprefix("ack"), StateToken)


def test_another_keyring_does_not_believe_it(keyring: Keyring, tmp_path: Path) -> None:
    other = Keyring(tmp_path / "other.json")
    with pytest.raises(InvalidToken):
        check(other, mint(keyring, state), StateToken)
    mint(other, state)
    with pytest.raises(InvalidToken):
        check(other, mint(keyring, state), StateToken)


def test_the_previous_key_is_still_believed_and_the_one_before_it_is_not(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keyring.json")
    first = mint(keyring, state)
    keyring.rotate()
    assert check(keyring, first, StateToken) == state
    assert mint(keyring, state) != first
    keyring.rotate()
    with pytest.raises(InvalidToken):
        check(keyring, first, StateToken)


def test_a_rotation_is_seen_by_others_at_once(tmp_path: Path) -> None:
    ours, theirs = Keyring(tmp_path / "keyring.json"), Keyring(tmp_path / "keyring.json")
    before = mint(ours, state)
    theirs.rotate()
    assert mint(ours, state) == mint(theirs, state) != before


def test_renewing_one_session_voids_its_tokens_alone_and_for_good(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keyring.json")
    other = StateToken(session_id=SessionId("s-2"), run_id=run, node_id=node)
    void, kept = mint(keyring, state), mint(keyring, other)
    keyring.renew(session)
    for _ in range(2):
        with pytest.raises(InvalidToken):
            check(keyring, void, StateToken)
        assert check(keyring, kept, StateToken) == other
        assert check(keyring, mint(keyring, state), StateToken) == state
        keyring.rotate()
        kept = mint(keyring, other)


def test_no_key_is_no_key(tmp_path: Path) -> None:
    """A keyring that was never rotated has no previous key; nobody can sign with the key that is not there."""
    import hmac

    keyring = Keyring(tmp_path / "keyring.json")
    keyring.sign(session, b"")
    forged = hmac.digest(hmac.digest(b"", b"session:", "sha256"), b"text", "sha256")
    assert not keyring.is_signed(session, b"text", forged)


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "a/b/keyring.json"
    Keyring(path).sign(session, b"")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_keyring_that_others_can_read_is_refused_with_the_way_out(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key ring.json"
    keyring = Keyring(path)
    text = mint(keyring, state)
    path.chmod(mode)
    for use in (lambda: mint(keyring, state), lambda: check(keyring, text, StateToken), keyring.rotate):
        with pytest.raises(KeyringExposed, match=r"chmod 600 '.*key ring.json'"):
            use()
    path.chmod(0o600)
    assert check(keyring, text, StateToken) == state


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\x00" * 80, b'{"current":"00"}', b'{"current":"zz"}', b'{"version":2,"current":"%s"}' % (b"0" * 64)],
)
def test_what_is_no_keyring_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keyring.json"
    path.write_bytes(content)
    path.chmod(0o600)
    keyring = Keyring(path)
    for use in (lambda: keyring.sign(session, b""), keyring.rotate, lambda: keyring.renew(session)):
        with pytest.raises(KeyringDamaged):
            use()
    assert path.read_bytes() == content


def test_two_processes_do_not_change_it_at_once(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keyring.json")
    before = keyring.sign(session, b"")
    lock = RealDisk().lock(tmp_path / "keyring.json.lock")
    with pytest.raises(LogBusy):
        keyring.rotate()
    lock.release()
    assert keyring.sign(session, b"") == before


def test_a_token_is_checked_in_another_process(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keyring.json")
    script = (
        "import sys; from runstate.runtimes.session.keyring import Keyring;"
        "from runstate.runtimes.session.tokens import StateToken, check;"
        "print(check(Keyring(sys.argv[1]), sys.argv[2], StateToken).node_id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(keyring.path), mint(keyring, state)],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout.strip() == node


def test_the_keyring_holds_its_keys_and_nothing_else(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keyring.json")
    keyring.rotate()
    keyring.rotate()
    keyring.renew(session)
    assert sorted(json.loads(keyring.path.read_bytes())) == ["current", "previous", "salts", "version"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["keyring.json", "keyring.json.lock"]


def test_what_a_killed_change_leaves_is_swept_by_the_next(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keyring.json")
    keyring.rotate()
    for name in ("keyring.json.0123456789abcdef.tmp", "other.json.0123456789abcdef.tmp"):
        (tmp_path / name).write_bytes(b"keys")
    keyring.rotate()
    assert {path.name for path in tmp_path.iterdir()} == {
        "keyring.json",
        "keyring.json.lock",
        "other.json.0123456789abcdef.tmp",
    }


def test_who_finds_the_keyring_held_waits_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = RealDisk().lock(tmp_path / "keyring.json.lock")
    monkeypatch.setattr(keyring_module, "sleep", lambda _: held.release())
    Keyring(tmp_path / "keyring.json").rotate()
    assert (tmp_path / "keyring.json").exists()
