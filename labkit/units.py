"""Bytes and times as text. Bytes are shown in binary units only: KiB, MiB, GiB."""

from __future__ import annotations

import math
import re

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

_UNITS = {"": 1, "B": 1, "K": KiB, "KIB": KiB, "M": MiB, "MIB": MiB, "G": GiB, "GIB": GiB}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def fmt_bytes(n: float) -> str:
    """Bytes as text with three significant figures: ``3.80 GiB``, ``12.0 MiB``, ``144 B``."""
    sign = "-" if n < 0 else ""
    size = abs(n)
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        # 1023.6 MiB would be rounded to "1024 MiB": write it as 1.00 GiB.
        if size >= unit * 0.9995:
            value = size / unit
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{sign}{value:.{digits}f} {name}"
    return f"{sign}{size:.0f} B"


def parse_bytes(text: str | float) -> int:
    """Read a size as people type it: ``600MiB``, ``1.5G``, ``4096``. K, M and G are binary here.

    A number is taken as bytes, without its fraction.

    Raises:
        ValueError: not a size, or a decimal unit (GB, MB), which is refused because it could mean either.
    """
    if not isinstance(text, str):
        if not 0 <= text < math.inf:
            raise ValueError(f"{text!r} is not a size: write a positive number of bytes.")
        return int(text)
    match = _SIZE.fullmatch(text)
    unit = match.group(2).upper() if match else ""
    if unit in ("KB", "MB", "GB"):
        raise ValueError(
            f"{text!r} is ambiguous: write {unit[0]}iB (1024-based), as in {text.strip()[:-2].strip()}{unit[0]}iB."
        )
    if not match or unit not in _UNITS:
        raise ValueError(f"{text!r} is not a size: write a number and a unit, as in 600MiB or 1.5GiB.")
    return int(float(match.group(1)) * _UNITS[unit])


def fmt_ms(ms: float) -> str:
    """Milliseconds as text with two or three figures: ``0.21 ms``, ``42.7 ms``, ``1.28 s``."""
    if ms >= 999.5:
        return f"{ms / 1000:.2f} s"
    return f"{ms:.{2 if ms < 9.995 else 1 if ms < 99.95 else 0}f} ms"


def times(a: float, b: float) -> str:
    """The larger of two positive figures divided by the smaller: ``1.00×``, ``2.3×``."""
    if a <= 0 or b <= 0:
        return "not comparable"
    ratio = max(a / b, b / a)
    return f"{ratio:.2f}×" if ratio < 1.995 else f"{ratio:.1f}×" if ratio < 99.5 else f"{ratio:.0f}×"
