"""Canonical JSON: the bytes of RFC 8785, and what is refused before it can become anybody's problem."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runstate.errors import InvalidJson
from runstate.models.canonical import canonical, check_value, depth_max, digest, embed, parse

# Doubles and their text, as ECMAScript's Number::toString (which RFC 8785 points at) gives it: plain digits
# from 1e-6 to below 1e21, an exponent with its sign outside of that, and always the shortest digits that
# read back as the same double.
numbers = [
    (0.0, b"0"),
    (-0.0, b"0"),
    (5e-324, b"5e-324"),
    (-5e-324, b"-5e-324"),
    (1.7976931348623157e308, b"1.7976931348623157e+308"),
    (9007199254740991, b"9007199254740991"),
    (9007199254740992.0, b"9007199254740992"),
    (1e20, b"100000000000000000000"),
    (999999999999999700000.0, b"999999999999999700000"),
    (1e21, b"1e+21"),
    (9.999999999999997e22, b"9.999999999999997e+22"),
    (1e23, b"1e+23"),
    (295147905179352830000.0, b"295147905179352830000"),
    (0.000001, b"0.000001"),
    (0.0000001, b"1e-7"),
    (9.999999999999997e-7, b"9.999999999999997e-7"),
    (333333333.3333332, b"333333333.3333332"),
    (333333333.33333325, b"333333333.33333325"),
    (1.0, b"1"),
    (4.50, b"4.5"),
    (2e-3, b"0.002"),
    (0.1 + 0.2, b"0.30000000000000004"),
    (-1, b"-1"),
]


@pytest.mark.parametrize(("number", "written"), numbers)
def test_a_number_is_written_as_ecmascript_does(number: float, written: bytes) -> None:
    assert canonical(number) == written


@pytest.mark.parametrize(("number", "written"), numbers)
def test_the_fast_way_writes_the_same_number(number: float, written: bytes) -> None:
    assert _fast([number]) == b"[" + written + b"]"


def test_names_are_sorted_by_their_utf_16_units() -> None:
    # U+1F600 is the pair D83D DE00 and comes before U+FB33, though its code point is the higher one.
    names = ["\ufb33", "\U0001f600", "\u20ac", "\u0080", "\u00f6", "1", "\r"]
    expected = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(msgspec.json.decode(canonical(dict.fromkeys(names, 0)))) == expected


def test_the_fast_way_sorts_names_by_their_utf_16_units() -> None:
    names = dict.fromkeys(["\ufb33", "\U0001f600", "a"], 0)
    assert _fast([names]) == canonical([names])


def test_names_are_sorted_in_every_object_and_lists_never() -> None:
    assert canonical({"b": [3, {"d": 1, "c": 2}, 1], "a": {}}) == b'{"a":{},"b":[3,{"c":2,"d":1},1]}'


def test_only_what_must_be_escaped_is_escaped() -> None:
    text = '\u20ac$\u000f\nA\'B"\\\\"/\u007f\u2028'
    assert canonical(text) == '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/\u007f\u2028"'.encode()


@pytest.mark.parametrize("fast", [False, True])
def test_every_control_character_has_its_shortest_escape(fast: bool) -> None:
    short = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"}
    for code in range(32):
        written = _fast(chr(code)) if fast else canonical(chr(code))
        assert written == b'"' + short.get(code, b"\\u%04x" % code) + b'"'


def test_literals_and_the_absence_of_spaces() -> None:
    assert canonical([None, True, False, "", {}, []]) == b'[null,true,false,"",{},[]]'


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_fast_way_writes_what_rfc_8785_writes(data: st.DataObject, json_values: st.SearchStrategy[Any]) -> None:
    value = data.draw(json_values)
    assert _fast(value) == rfc8785.dumps(value)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("\u2028\u2029\x7f\x00\ufeff")
@settings(max_examples=150, deadline=None)
def test_text_is_written_alike_both_ways(text: str) -> None:
    assert _fast({"name": text}) == rfc8785.dumps({"name": text})


def test_a_tuple_is_written_like_a_list() -> None:
    assert _fast({"a": (1e21, {"\ufb33": 1, "\U0001f600": 2})}) == canonical(
        {"a": [1e21, {"\ufb33": 1, "\U0001f600": 2}]}
    )


def test_a_value_that_needs_no_care_is_not_copied() -> None:
    value = {"a": [1, "ü", None, {"b": True}]}
    assert embed(value) is value


def test_a_digest_is_lower_case_hex_sha_256() -> None:
    assert digest(b"abc") == hashlib.sha256(b"abc").hexdigest()
    assert digest(b"abc").startswith("ba7816bf8f01cfea")


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 2**53 + 1, 2**63, 10**400, "\ud800", {"\udfff": 1}, {1: 2}]
)
def test_what_json_cannot_say_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(InvalidJson):
        canonical(value)


@given(st.floats(2**53, 1e22) | st.floats(-1e22, -(2**53)))
@example(2.0**68)
@example(1.2345678901234567e19)
@example(2.0**63)
@settings(max_examples=100, deadline=None)
def test_a_large_double_that_was_read_back_as_digits_gives_the_same_bytes(number: float) -> None:
    # The digits are the shortest that name the double, and rarely its exact value: 2^68 is …830000, not …825856.
    written = canonical([number, 0.5])
    assert canonical(json.loads(written)) == written


def test_nesting_that_would_exhaust_the_stack_has_no_canonical_form() -> None:
    with pytest.raises(InvalidJson):
        canonical(_nested(100_000))


# --- parse -----------------------------------------------------------------------------------------------

hostile = {
    "invalid UTF-8": b'{"a":"\xff"}',
    "UTF-8 of a surrogate": b'{"a":"\xed\xa0\x80"}',
    "overlong UTF-8": b'{"a":"\xc0\x80"}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"a":1}',
    "a lone high surrogate": b'{"a":"\\ud800"}',
    "a lone low surrogate": b'{"a":"\\uDC00"}',
    "surrogates in the wrong order": b'{"a":"\\udc00\\ud800"}',
    "a lone surrogate in a name": b'{"\\uD800":1}',
    "1,000-deep lists": b"[" * 1000 + b"]" * 1000,
    "1,000-deep objects": b'{"a":' * 1000 + b"1" + b"}" * 1000,
    "100,000-deep and never closed": b"[" * 100_000,
    "a duplicate name": b'{"a":1,"b":2,"a":1}',
    "a duplicate name further in": b'[{"x":{"a":1,"\\u0061":2}}]',
    "NaN": b'{"a":NaN}',
    "Infinity": b"[Infinity]",
    "-Infinity": b"[-Infinity]",
    "2^53": b"9007199254740992",
    "-2^53": b"-9007199254740992",
    "2^63": b'{"a":9223372036854775808}',
    "1e999": b"1e999",
    "-1e999": b"-1e999",
    "a million digits": b"1" * 1_000_000,
    "a million digits and a fraction": b"1" * 1_000_000 + b".5",
    "a raw NUL": b'{"a":"\x00"}',
    "a raw newline in a string": b'"\n"',
    "single quotes": b"{'a':1}",
    "a trailing comma": b"[1,]",
    "a comment": b"[1] // one",
    "two values": b"{} {}",
    "a leading zero": b"01",
    "a leading plus": b"+1",
    "a bare fraction": b".5",
    "hexadecimal": b"0x10",
    "nothing": b"",
    "spaces alone": b"  \n",
    "a cut line": b'{"a":"b',
    "zeros of a torn write": b"\x00" * 64,
    "a space that is none": '\u00a0{"a":1}'.encode(),
}


@pytest.mark.parametrize("text", hostile.values(), ids=hostile.keys())
def test_parse_refuses(text: bytes) -> None:
    with pytest.raises(InvalidJson):
        parse(text)


def test_parse_refuses_a_lone_surrogate_in_text_that_was_decoded_carelessly() -> None:
    with pytest.raises(InvalidJson):
        parse('{"a":"\ud800"}')


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"a\u2028b\u2029c"', "a\u2028b\u2029c"),
        ('"\\u0000"', "\0"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ('"\\\\ud800"', "\\ud800"),
        ("9007199254740991", 2**53 - 1),
        ("-9007199254740991", -(2**53) + 1),
        ("1.0", 1.0),
        ("1e3", 1000.0),
        ("-0", 0),
        ("0." + "1" * 1_000_000, 0.1111111111111111),
        (' {"a" :\t[ ]\r\n} ', {"a": []}),
        ('"[[[[[[[[[[[' + "[" * 200 + '"', "[[[[[[[[[[[" + "[" * 200),
        ("[" + "[]," * 150 + "0]", [[] for _ in range(150)] + [0]),
    ],
)
def test_parse_keeps(text: str, value: Any) -> None:
    assert parse(text.encode()) == value


def test_parse_takes_a_string_of_ten_megabytes() -> None:
    assert len(parse(b'"' + b"a" * 10_000_000 + b'"')) == 10_000_000


def test_parse_takes_nesting_up_to_its_limit() -> None:
    assert parse(b"[" * depth_max + b"]" * depth_max) == _nested(depth_max)


def test_parse_refuses_nesting_beyond_its_limit() -> None:
    with pytest.raises(InvalidJson, match="deeper than 100"):
        parse(b"[" * (depth_max + 1) + b"]" * (depth_max + 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a":\xff}', "byte 5"),
        (b"[1,]", "column"),
        (b'{"twice":1,"twice":2}', "'twice'"),
        (b"[123456789012345678]", "123456789012345678"),
        (b"[NaN]", "NaN"),
    ],
)
def test_a_refusal_says_where_or_what(text: bytes, words: str) -> None:
    with pytest.raises(InvalidJson, match=words):
        parse(text)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_parse_reads_what_canonical_wrote(data: st.DataObject, json_values: st.SearchStrategy[Any]) -> None:
    value = data.draw(json_values.filter(_safe))
    assert canonical(parse(canonical(value))) == canonical(value)


@given(st.binary(max_size=64))
@settings(max_examples=300, deadline=None)
def test_bytes_are_parsed_or_refused_and_nothing_else(data: bytes) -> None:
    try:
        parse(data)
    except InvalidJson:
        return
    parse(data.decode())


# --- check_value -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        2**53,
        -(2**53),
        2**63,
        10**1000,
        "\ud800",
        "\udc00x",
        b"bytes",
        {1, 2},
        {1: 2},
        {None: 2},
        object(),
        1j,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_check_value_refuses(value: Any) -> None:
    with pytest.raises(InvalidJson, match=r"\$\.a\[1\]"):
        check_value({"a": [0, value]})


def test_check_value_refuses_a_lone_surrogate_in_a_name() -> None:
    with pytest.raises(InvalidJson, match="surrogate"):
        check_value({"\ud800": 1})


def test_check_value_refuses_a_value_that_holds_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidJson, match="deeper"):
        check_value(loop)


@pytest.mark.parametrize("innermost", [[], {}, [0], {"a": None}], ids=repr)
@pytest.mark.parametrize("depth", [depth_max - 1, depth_max, depth_max + 1, depth_max + 2])
def test_check_value_and_parse_agree_on_how_deep_is_too_deep(depth: int, innermost: Any) -> None:
    value = innermost
    for _ in range(depth - 1):
        value = [value]
    assert _refuses(check_value, value) == _refuses(parse, msgspec.json.encode(value)) == (depth > depth_max)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_check_value_lets_every_interoperable_value_pass(
    data: st.DataObject, json_values: st.SearchStrategy[Any]
) -> None:
    check_value(data.draw(json_values))


def _fast(value: Any) -> bytes:
    return msgspec.json.Encoder(order="sorted").encode(embed(value))


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def _safe(value: Any) -> bool:
    """Without doubles from 2^53 on: their canonical text is a run of digits, which `parse` takes for an integer."""
    if isinstance(value, dict):
        return all(_safe(member) for member in value.values())
    if isinstance(value, list):
        return all(_safe(item) for item in value)
    return not isinstance(value, float) or abs(value) < 2**53 or abs(value) >= 1e21


def _refuses(check: Any, value: Any) -> bool:
    try:
        check(value)
    except InvalidJson:
        return True
    return False
