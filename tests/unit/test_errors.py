"""What errors show, and what they must not: no password, token or key gets into a message or into details."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runstate.errors import InvalidUrl, LogFailed, redact, shown_url

secret = "hunter2"

hidden = {
    "cannot reach postgresql://me:hunter2@db/runs: no route": "cannot reach postgresql://me@db/runs: no route",
    "'postgres://me:p@hunter2/x@db/runs' is not a log URL": "'postgres://me@db/runs' is not a log URL",
    "'postgresql://me:two words hunter2@db' is wrong": "'postgresql://me@db' is wrong",
    "'postgres://me:hunter2hunter2hunt' was cut": "'postgres://me:…' was cut",
    "redis://:hunter2@h:6379": "redis://@h:6379",
    'urls ["postgresql://a:hunter2@h/1","postgresql://b:hunter2@h/2"]': 'urls ["postgresql://a@h/1","postgresql://b@h/2"]',
    "postgresql://db/runs?password=hunter2&schema=a": "postgresql://db/runs?schema=a",
    "dynamodb://t?region=eu&aws_secret_access_key=hunter2": "dynamodb://t?region=eu",
    "dynamodb://t?endpoint=http://me:hunter2@h:1": "dynamodb://t?endpoint=http://me@h:1",
    "https://h/in?sig=hunter2": "https://h/in",
    "sc://h:15002/;token=hunter2;user_id=me": "sc://h:15002/;user_id=me",
    'missing "=" in "host=h password=hunter2 dbname=x"': 'missing "=" in "host=h password=… dbname=x"',
    "host=h password = 'hunter2 and more' port=1": "host=h password = … port=1",
    "spark.hadoop.fs.s3a.secret.key=hunter2 is set": "spark.hadoop.fs.s3a.secret.key=… is set",
    '{"user": "me", "password": "hunter2"}': '{"user": "me", "password": …}',
    "sent Authorization: Basic bWU6aHVudGVyMg== twice": "sent Authorization: Basic … twice",
    "sent {'Authorization': 'Bearer hunter2'}": "sent {'Authorization': 'Bearer …'}",
    "curl -H 'bearer hunter2hunter2hunter2'": "curl -H 'bearer …'",
}

shown_as_it_is = [
    "The stream 'r-1' begins with seq 10",
    "write endpoint=http://HOST:PORT or https://HOST, without credentials",
    "metrics: http://127.0.0.1:9090/metrics",
    "see http://localhost:8080, or http://[::1]:80/a@b",
    "http://localhost:8080/users?mail=me@example.org is gone",
    "postgresql://h:5432/db?user=me@server&schema=a",
    "postgresql://h1:5432,h2:5433/db?sslkey=/etc/key.pem&passfile=/home/me/.pgpass",
    'FATAL:  password authentication failed for user "me"',
    "No password and no key: set SNOWFLAKE_PASSWORD or SNOWFLAKE_PRIVATE_KEY_FILE=PATH",
    "the key 'run:RunStarted:1' of 3 keys, key=abc",
    "line 3: $.payload.password: Expected `str`, got `int`",
    "sqlite:/data/runs.db?busy_timeout_s=3",
    "a bearer authentication, basic usage, a token of 3 parts",
]


@pytest.mark.parametrize(("text", "shown"), hidden.items())
def test_a_secret_is_removed_from_text(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize("text", shown_as_it_is)
def test_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_an_error_holds_no_secret_in_its_message_or_details() -> None:
    url = f"postgresql://me:{secret}@db/runs"
    error = InvalidUrl(f"{url} is wrong", url=url, tried=[url, (url, {"cause": {"message": url}})], count=3)
    assert secret not in str(error)
    assert secret not in str(error.as_data())
    assert error.details["count"] == 3
    assert error.details["tried"][1][1] == {"cause": {"message": "postgresql://me@db/runs"}}


def test_an_error_that_is_raised_again_says_the_same() -> None:
    error = LogFailed(f"postgresql://me:{secret}@db: password={secret}", url=f"sc://h/;token={secret}")
    assert error.again().as_data() == error.as_data()


@given(st.text(st.sampled_from("ab:/@?&;=' \"\n.#1password=token://postgresql"), max_size=60))
def test_what_was_redacted_once_stays_the_same(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@given(st.text(max_size=30), st.sampled_from(["postgresql", "http", "x+y"]))
def test_no_password_survives_whatever_it_is_made_of(password: str, scheme: str) -> None:
    marked = f"{password}{secret}{password}"
    assume(not re.match(r"\d{1,5}([?#,]|/.*[?#])", marked, re.DOTALL))  # Nobody can tell that from a port.
    assert secret not in shown_url(f"{scheme}://me:{marked}@host/db")


def test_a_url_is_the_same_with_any_password_and_with_none() -> None:
    urls = [
        "postgresql://me:a@db/runs?schema=s",
        "postgresql://me:b@db/runs?schema=s",
        "postgresql://me@db/runs?schema=s",
    ]
    assert {shown_url(url) for url in urls} == {urls[-1]}


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "a." * 100_000, "token" * 40_000, "a://b:" * 5_000, "'" * 100_000], ids=range(5)
)
def test_a_long_text_is_redacted_in_no_time(text: str) -> None:
    started = time.monotonic()
    redact(text)
    assert time.monotonic() - started < 5
