"""Conversions of bytes and pages, sizes as text, the errors and their codes."""

import errno
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svmcore import errors
from svmcore.errors import (
    Errno,
    InvalidArgumentError,
    OverflowAddressError,
    SvmError,
    TraceError,
    error_from_errno,
)
from svmcore.units import (
    ADDRESS_LIMIT,
    PAGE_SIZE,
    bytes_of,
    format_size,
    pages_of,
    parse_size,
)

U64 = st.integers(0, ADDRESS_LIMIT - 1)


@given(U64, U64)
def test_pages_of_bytes(addr, size):
    size = min(size + 1, ADDRESS_LIMIT - addr)
    first, last = pages_of(addr, size)
    assert first * PAGE_SIZE <= addr < (first + 1) * PAGE_SIZE
    assert last * PAGE_SIZE <= addr + size - 1 < (last + 1) * PAGE_SIZE


@given(st.integers(0, (1 << 52) - 1), st.integers(0, 1 << 20))
def test_bytes_and_pages_go_both_ways(first, more):
    last = min(first + more, (1 << 52) - 1)
    start, end = bytes_of(first, last)
    assert pages_of(start, end - start) == (first, last)


@pytest.mark.parametrize(
    ("addr", "size", "pages"),
    [
        (0, 1, (0, 0)),
        (4095, 2, (0, 1)),
        (4096, 4096, (1, 1)),
        ((1 << 64) - 1, 1, ((1 << 52) - 1,) * 2),
    ],
)
def test_pages_at_the_edges(addr, size, pages):
    assert pages_of(addr, size) == pages


@pytest.mark.parametrize(("addr", "size"), [(-1, 4), (0, 0), (4096, -4096)])
def test_no_pages(addr, size):
    with pytest.raises(InvalidArgumentError, match="expected addr >= 0 and size > 0"):
        pages_of(addr, size)


@pytest.mark.parametrize(("addr", "size"), [(ADDRESS_LIMIT - 1, 2), (ADDRESS_LIMIT, 1)])
def test_pages_past_the_end(addr, size):
    with pytest.raises(OverflowAddressError, match=r"passes 2\*\*64"):
        pages_of(addr, size)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        (0, 0),
        ("4096", 4096),
        ("2M", 2 << 20),
        ("2 MiB", 2 << 20),
        (" 40GiB ", 40 << 30),
        ("192GB", 192 * 10**9),
        ("1.5k", 1536),
        ("0.5 TiB", 1 << 39),
        ("1T", 1 << 40),
        ("7b", 7),
        ("3kb", 3000),
        ("1tb", 10**12),
        ("18446744073709551615", (1 << 64) - 1),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1 2", "1XB", "0x10", "1e3", "1.", ".5", "1,5G", "٣M", -1, "1GiB\n2"]
)
def test_no_sizes(text):
    with pytest.raises(InvalidArgumentError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (80 << 30, "80.0 GiB"),
        (5 << 40, "5.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_sizes_for_people(size, text):
    assert format_size(size) == text


# ---- errors -------------------------------------------------------------------------------


def test_numbers_are_those_of_linux():
    known = {name: number for name, number in vars(errno).items() if name in Errno.__members__}
    if known.get("EDEADLK") == 35:  # this is Linux
        assert known == {member.name: member.value for member in Errno}
    assert [Errno(n).name for n in (1, 11, 14, 22, 75, 98)] == [
        "EPERM",
        "EAGAIN",
        "EFAULT",
        "EINVAL",
        "EOVERFLOW",
        "EADDRINUSE",
    ]


@pytest.mark.parametrize("member", list(Errno), ids=lambda m: m.name)
@pytest.mark.parametrize("sign", [1, -1])
def test_every_errno_has_an_error(member, sign):
    error = error_from_errno(sign * member, "what")
    assert isinstance(error, SvmError)
    assert error.code == member.name
    assert str(error) == "what"


def test_an_errno_that_nobody_knows():
    assert error_from_errno(-200, "what").code == "errno 200"
    # The class itself is untouched.
    assert SvmError.code == "EINVAL"
    error_from_errno(Errno.EEXIST, "what")
    assert InvalidArgumentError.code == "EINVAL"


def test_classes_are_the_builtin_ones_too():
    assert isinstance(error_from_errno(22, ""), ValueError)
    assert isinstance(error_from_errno(17, ""), InvalidArgumentError)
    assert isinstance(error_from_errno(75, ""), OverflowError)
    assert isinstance(error_from_errno(12, ""), MemoryError)
    assert isinstance(TraceError("f", "", "r"), ValueError)


def test_all_errors_are_public_and_have_a_code():
    found = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, SvmError)]
    assert {c.__name__ for c in found} == set(errors.__all__) - {"Errno", "error_from_errno"}
    assert all(c.code in Errno.__members__ for c in found)


def test_trace_error_says_where():
    error = TraceError("a.csv", "line 3", "expected a number")
    assert str(error) == "a.csv: line 3: expected a number"
    assert (error.path, error.where, error.reason) == ("a.csv", "line 3", "expected a number")
    assert str(TraceError("a.csv", "", "is empty")) == "a.csv: is empty"


@pytest.mark.parametrize(
    "error",
    [error_from_errno(14, "what"), error_from_errno(17, "w"), TraceError("f", "line 1", "r")],
)
def test_errors_travel_between_processes(error):
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert (str(twin), twin.code) == (str(error), error.code)
