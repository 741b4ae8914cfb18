"""Sizes and times as text and back: every boundary, and everything that is refused."""

from __future__ import annotations

import math

import pytest

from labkit.units import GiB, KiB, MiB, fmt_bytes, fmt_ms, parse_bytes, times


def test_units_are_powers_of_1024():
    assert (KiB, MiB, GiB) == (2**10, 2**20, 2**30)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (144, "144 B"),
        (1536, "1.50 KiB"),
        (9.99 * KiB, "9.99 KiB"),
        (9.996 * KiB, "10.0 KiB"),
        (99.9 * KiB, "99.9 KiB"),
        (99.96 * KiB, "100 KiB"),
        (1023 * KiB, "1023 KiB"),
        (1023.4 * KiB, "1023 KiB"),
        (1023.6 * KiB, "1.00 MiB"),
        (MiB - 1, "1.00 MiB"),
        (MiB, "1.00 MiB"),
        (12 * MiB, "12.0 MiB"),
        (600 * MiB, "600 MiB"),
        (1023.6 * MiB, "1.00 GiB"),
        (GiB, "1.00 GiB"),
        (4_080_281_056, "3.80 GiB"),
        (38.65 * GiB, "38.6 GiB"),
        (2048 * GiB, "2048 GiB"),
        (-1, "-1 B"),
        (-12 * MiB, "-12.0 MiB"),
    ],
)
def test_bytes_as_text(size, text):
    assert fmt_bytes(size) == text


def test_text_of_a_size_is_never_in_the_next_unit():
    for exponent in range(1, 46):
        for size in (2**exponent - 1, 2**exponent, 2**exponent + 1):
            value, unit = fmt_bytes(size).split()
            assert float(value) < 1024 or unit == "GiB", size
            assert float(value) * {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB}[unit] == pytest.approx(size, rel=0.005)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("600MiB", 600 * MiB),
        ("600 MiB", 600 * MiB),
        ("  600  mib ", 600 * MiB),
        ("1.5G", GiB + GiB // 2),
        ("1.5GiB", GiB + GiB // 2),
        ("4k", 4 * KiB),
        ("4096", 4096),
        ("4096B", 4096),
        ("0", 0),
        ("0.1", 0),
        (4096, 4096),
        (0.6 * 1000, 600),
        (0, 0),
    ],
)
def test_sizes_that_are_read(text, size):
    found = parse_bytes(text)
    assert found == size and type(found) is int


@pytest.mark.parametrize("text", ["600MB", "10 GB", "1.5gb", "5kB"])
def test_decimal_units_are_refused_with_the_binary_one(text):
    with pytest.raises(ValueError, match=r"is ambiguous: write [KMG]iB .*as in [\d.]+[KMG]iB\.") as error:
        parse_bytes(text)
    number = text[:-2].strip()
    assert str(error.value).endswith(f"as in {number}{text[-2].upper()}iB.")


@pytest.mark.parametrize(
    "text", ["", " ", "MiB", "-5MiB", "-5", "+5", "5e3", "1,5GiB", "5 5", "600TiB", "600 M i B", "١MiB"]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a size: write a number and a unit"):
        parse_bytes(text)


@pytest.mark.parametrize("number", [-1, -0.5, math.inf, math.nan])
def test_numbers_that_are_no_size_are_refused(number):
    with pytest.raises(ValueError, match="is not a size: write a positive number"):
        parse_bytes(number)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.00 ms"),
        (0.214, "0.21 ms"),
        (9.99, "9.99 ms"),
        (9.996, "10.0 ms"),
        (42.68, "42.7 ms"),
        (99.96, "100 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (1280, "1.28 s"),
    ],
)
def test_times_as_text(ms, text):
    assert fmt_ms(ms) == text


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (1, 1, "1.00×"),
        (2, 1, "2.0×"),
        (1, 2, "2.0×"),
        (3, 2, "1.50×"),
        (23, 10, "2.3×"),
        (1000, 10, "100×"),
        (0, 1, "not comparable"),
        (1, -1, "not comparable"),
    ],
)
def test_how_far_apart(a, b, text):
    assert times(a, b) == text
