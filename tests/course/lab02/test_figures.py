"""Pictures of lab 02: figures in them equal the input, no text is lost or covered, and grey tells enough."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from support.pictures import (
    LONG,
    Album,
    assert_no_guess_draws_nothing,
    assert_well_made,
    bars,
    guess,
    line,
    luma,
    numbers,
    patches,
    said,
)

from labkit.course import figures
from labkit.course.figurekit.style import MEASURED
from labkit.course.figures import BitRow, BlockFit, BlockSizeRow, ErrorRow
from labkit.course.lab02.figures.block_parts import SCALES
from labkit.course.lab02.figures.mixture import shade
from labkit.gguf.types import TYPES, row_bytes
from labkit.models import shapes
from labkit.units import GiB, MiB

pytestmark = pytest.mark.filterwarnings("error")


@dataclass(frozen=True)
class Bits:
    """A field of a block, made by hand: the pictures must not depend on what the decoder thinks."""

    name: str
    part: str
    byte_start: int
    byte_end: int
    bit_start: int
    bit_end: int
    raw: int
    value: float
    meaning: str


def q4_k() -> list[Bits]:
    """A Q4_K block whose byte n is n: two f16, 12 bytes of 6-bit scales and minimums, 128 bytes of nibbles."""
    found = [
        Bits("d", "d", 0, 2, 0, 16, 0x0100, 1.5e-5, "f16, multiplies every scale"),
        Bits("dmin", "dmin", 2, 4, 0, 16, 0x0302, 4.6e-5, "f16, multiplies every minimum"),
    ]
    for n in range(8):
        kind = "scale" if n < 4 else "minimum"
        byte = 4 + n
        found.append(Bits(f"{kind} {n % 4}", "scales", byte, byte + 1, 0, 6, byte, byte, str(byte)))
        found.append(Bits(f"{kind} {n % 4 + 4}, bits 4–5", "scales", byte, byte + 1, 6, 8, 0, 0, f"0 of {8 + n}"))
    for n in range(4):
        byte = 12 + n
        found.append(Bits(f"scale {n + 4}, bits 0–3", "scales", byte, byte + 1, 0, 4, byte, byte, f"{byte} of {byte}"))
        found.append(Bits(f"minimum {n + 4}, bits 0–3", "scales", byte, byte + 1, 4, 8, 0, 0, "0 of 0"))
    for n in range(128):
        byte = 16 + n
        low = n // 32 * 64 + n % 32
        found.append(Bits(f"weight {low}", "qs", byte, byte + 1, 0, 4, byte & 15, byte & 15, str(byte & 15)))
        found.append(Bits(f"weight {low + 32}", "qs", byte, byte + 1, 4, 8, byte >> 4, byte >> 4, str(byte >> 4)))
    return found


def simple(*parts: tuple[str, int]) -> list[Bits]:
    """A block of parts given by name and size, one field for each byte."""
    names = [name for name, size in parts for _ in range(size)]
    return [Bits(f"{name} {n}", name, n, n + 1, 0, 8, n, n - 7.5, "") for n, name in enumerate(names)]


RNG = np.random.default_rng(3)
W32 = RNG.normal(0, 0.03, 32)
W256 = RNG.normal(0, 0.03, 256)


def q4_0(weights: np.ndarray) -> BlockFit:
    """ggml's Q4_0 by hand: the largest weight becomes −8 steps."""
    step = weights[np.abs(weights).argmax()] / -8
    levels = step * (np.arange(16) - 8)
    return BlockFit(weights, step * np.clip(np.round(weights / step), -8, 7), levels)


def with_outlier(weight: float, at: int = 7) -> BlockFit:
    weights = W32.copy()
    weights[at] = weight
    return q4_0(weights)


ERRORS = [
    ErrorRow(name, TYPES[name].bpw, rmse, worst)
    for name, rmse, worst in [
        ("Q2_K", 0.0210, 0.063),
        ("Q3_K", 0.0124, 0.05),
        ("IQ4_XS", 0.0060, 0.03),
        ("Q4_0", 0.0071, 0.021),
        ("Q4_K", 0.0056, 0.022),
        ("IQ4_NL", 0.0058, 0.029),
        ("Q4_1", 0.0062, 0.03),
        ("Q5_0", 0.0036, 0.01),
        ("Q5_K", 0.0028, 0.017),
        ("Q5_1", 0.0031, 0.016),
        ("Q6_K", 0.0016, 0.006),
        ("Q8_0", 0.00047, 0.0014),
    ]
]
BLOCK_SIZES = [
    BlockSizeRow(n, 4 + 16 / n, 0.004 * (1 + 0.12 * i)) for i, n in enumerate((8, 16, 32, 64, 128, 256, 512))
]
BITS = [
    BitRow("Q8_0", 138 * MiB, 0.005, 155),
    BitRow("Q6_K", 131 * MiB, 0.011, 156),
    BitRow("Q5_K_M", 106 * MiB, 0.093, 150, 0.06),
    BitRow("Q4_K_M", 100 * MiB, 0.071, 154, 0.05),
    BitRow("IQ4_XS", 86 * MiB, 0.15, 100, 0.09),
    BitRow("Q4_0", 87 * MiB, 0.318, 213, 0.197),
    BitRow("Q3_K_M", 89 * MiB, 0.205, 140, 0.099),
    BitRow("Q2_K", 84 * MiB, 0.441, 120, 0.307),
]
F16 = BitRow("F16", 257 * MiB, 0.0, 110)


def tensors(shape: str, quant: str) -> tuple[shapes.TensorSpec, ...]:
    return shapes.tensors(shapes.get(shape), quant)


def file_bytes(shape: str, quant: str) -> int:
    return sum(row_bytes(t.type, t.dims[0]) * math.prod(t.dims[1:]) for t in tensors(shape, quant))


GRID = [[file_bytes(shape, quant) / GiB for quant in shapes.QUANTS] for shape in shapes.names()]

PICTURES = Album(
    {
        "map": lambda: figures.block_map(q4_k(), n_bytes=144),
        "map, split scale": lambda: figures.block_map(q4_k(), n_bytes=144, selected="scale 4"),
        "map, part of many fields": lambda: figures.block_map(q4_k(), n_bytes=144, selected="qs"),
        "map, one weight": lambda: figures.block_map(q4_k(), n_bytes=144, selected=[*q4_k()[:2], *q4_k()[5:12]]),
        "map, largest": lambda: figures.block_map(
            simple(("ql", 128), ("qh", 64), ("scales", 16), ("d", 2)), n_bytes=210, selected="d 209"
        ),
        "map, short parts": lambda: figures.block_map(
            simple(("d", 2), ("scales_h", 2), ("scales_l", 4), ("qs", 128)), n_bytes=136, selected="scales_h"
        ),
        "map, one row": lambda: figures.block_map(simple(("d", 2), ("m", 2), ("qh", 4), ("qs", 16)), n_bytes=24),
        "map, 34 bytes": lambda: figures.block_map(simple(("d", 2), ("qs", 32)), n_bytes=34, selected="d"),
        "map, one weight only": lambda: figures.block_map(simple(("float", 2)), n_bytes=2),
        "map, strange names": lambda: figures.block_map(
            [Bits(LONG, LONG, 0, 60, 0, 480, 1 << 479, 1e300, "it goes on " * 30), *simple(("d", 2))],
            n_bytes=70,
            selected=LONG,
        ),
        "weights": lambda: figures.block_weights(W256.round(2), original=W256, scales=[0.01] * 8, minima=[-0.1] * 8),
        "weights, 16 sub-blocks": lambda: figures.block_weights(W256, scales=np.linspace(-1, 1, 16)),
        "weights, one scale": lambda: figures.block_weights(q4_0(W32).decoded, original=W32, scales=[0.1]),
        "weights, all 0": lambda: figures.block_weights(np.zeros(32), original=np.zeros(32)),
        "weights, far apart": lambda: figures.block_weights(
            np.r_[np.full(255, 1e-6), -1e9],
            original=np.r_[np.full(255, 2e-6), -1e9],
            scales=[1e5] * 8,
            minima=[-1e9] * 8,
        ),
        "outlier": lambda: figures.outlier(q4_0(W32), with_outlier(-0.9)),
        "outlier, last and huge": lambda: figures.outlier(q4_0(W32), with_outlier(1e9, at=31)),
        "outlier, first": lambda: figures.outlier(q4_0(W32), with_outlier(0.1, at=0)),
        "outlier, 256": lambda: figures.outlier(q4_0(W256), q4_0(np.r_[W256[:-1], -4])),
        "outlier, none": lambda: figures.outlier(q4_0(W32), q4_0(W32)),
        "errors": lambda: figures.error_by_type(ERRORS),
        "errors, guesses": lambda: figures.error_by_type(ERRORS, guess_factor=2.5),
        "errors, steep guess": lambda: figures.error_by_type(ERRORS, guess_factor=100),
        "errors, guess of growth": lambda: figures.error_by_type(ERRORS, guess_factor=0.5),
        "errors, floats": lambda: figures.error_by_type(
            [*ERRORS, ErrorRow("F16", 16, 0.0, 0.0), ErrorRow("BF16", 16, 3e-5), ErrorRow("F32", 32, 0.0)]
        ),
        "errors, in one place": lambda: figures.error_by_type([replace(row, bpw=4.5, rmse=0.005) for row in ERRORS]),
        "errors, far apart": lambda: figures.error_by_type([*ERRORS, ErrorRow(LONG, 1.5, 1e6, 1e9)]),
        "errors, one": lambda: figures.error_by_type(ERRORS[:1]),
        "errors, none": lambda: figures.error_by_type([]),
        "block size": lambda: figures.block_size(BLOCK_SIZES),
        "block size, many": lambda: figures.block_size([BlockSizeRow(n, 4 + 16 / n, 0.01) for n in range(8, 513, 8)]),
        "block size, flat": lambda: figures.block_size([BlockSizeRow(n, 4.0, 0.0) for n in (32, 128)]),
        "block size, one": lambda: figures.block_size(BLOCK_SIZES[3:4]),
        "block size, none": lambda: figures.block_size([]),
        "mixture": lambda: figures.mixture_map(tensors("llama-2-7b", "Q4_K_M")),
        "mixture, fallbacks": lambda: figures.mixture_map(tensors("smollm2-135m", "IQ4_XS")),
        "mixture, 80 layers": lambda: figures.mixture_map(tensors("llama-3.1-70b", "Q3_K_M")),
        "mixture, experts": lambda: figures.mixture_map(tensors("qwen3-30b-a3b", "Q2_K")),
        "mixture, two fives": lambda: figures.mixture_map(tensors("qwen2.5-0.5b", "Q5_K_M")),
        "mixture, floats": lambda: figures.mixture_map(tensors("phi-3-mini", "F16")),
        "mixture, none": lambda: figures.mixture_map([]),
        "grid": lambda: figures.size_grid(shapes.names(), shapes.QUANTS, GRID, unit="GiB"),
        "grid, percent": lambda: figures.size_grid(
            ["7B", LONG], [*shapes.QUANTS[:3], LONG], [[100, 53, 41, 30], [100, 53.1, None, 0.2]], unit="% of F16"
        ),
        "grid, far apart": lambda: figures.size_grid(["a"], ["b", "c"], [[1e-9, 12345.6]], unit="GiB"),
        "grid, none": lambda: figures.size_grid(["a"], ["b"], [[None]], unit="bits per weight"),
        "bits": lambda: figures.what_a_bit_buys(BITS),
        "bits, with the reference": lambda: figures.what_a_bit_buys(
            [F16, *BITS], reference="F16, itself dequantized from Q4_1, " * 4, guess_times=("Q4_0", "Q8_0", 4)
        ),
        "bits, guess beyond": lambda: figures.what_a_bit_buys(BITS, guess_times=("Q4_0", "Q8_0", 1e6)),
        "bits, not timed": lambda: figures.what_a_bit_buys([replace(row, tokens_per_s=None) for row in BITS]),
        "bits, in one place": lambda: figures.what_a_bit_buys(
            [BitRow(f"T{n}", MiB, 0.1, 10, 0.1) for n in range(8)], guess_times=("T3", "T2", 1)
        ),
        "bits, far apart": lambda: figures.what_a_bit_buys(
            [*BITS, BitRow(LONG, 400 * GiB, 1e-7, 0.01), BitRow("x", MiB, 50, 9000, 1e-5)]
        ),
        "bits, only the reference": lambda: figures.what_a_bit_buys([F16]),
        "bits, none": lambda: figures.what_a_bit_buys([]),
    }
)


@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_inside_the_picture_and_clear_of_the_others(name: str) -> None:
    assert_well_made(PICTURES[name])


# block_map


def test_the_map_shows_every_byte_at_its_place_in_the_shade_of_its_part() -> None:
    fig = PICTURES["map"]
    digits = [t.get_text() for t in fig.axes[0].texts if t.get_family() == ["DejaVu Sans Mono"]]
    assert digits == [f"{n:02x}" for n in range(144)], "the bytes come out of the bits of the fields"
    assert [len(patches(fig, part)) for part in ("d", "dmin", "scales", "qs")] == [2, 2, 12, 128]
    assert [patch.get_xy()[0] for patch in patches(fig, "scales")] == list(range(4, 16))
    assert {to_hex(patch.get_facecolor()).upper() for patch in patches(fig, "scales")} == {SCALES}
    assert {to_hex(patch.get_facecolor()).upper() for patch in patches(fig, "qs")} == {MEASURED}
    rows = {patch.get_xy()[1] for patch in patches(fig, "qs")}
    assert len(rows) == 5, "144 bytes are four rows of 32 and a half"
    assert numbers(fig) == ["128", "144", "16"]
    assert "qs: 128 bytes" in said(fig) and "dmin: 2 bytes" in said(fig)


def test_parts_differ_without_colour() -> None:
    fig = figures.block_map(
        simple(("d", 2), ("dmin", 2), ("scales_h", 2), ("scales_l", 4), ("qh", 8), ("qs", 16)), n_bytes=34
    )
    looks = [patches(fig, part)[0] for part in ("d", "dmin", "scales_h", "scales_l", "qh", "qs")]
    for n, a in enumerate(looks):
        for b in looks[n + 1 :]:
            apart = abs(luma(to_hex(a.get_facecolor())) - luma(to_hex(b.get_facecolor())))
            assert apart > 0.12 or a.get_hatch() != b.get_hatch(), (a.get_label(), b.get_label())


def test_a_split_field_is_outlined_in_both_bytes_and_its_bits_are_shown() -> None:
    fig = PICTURES["map, split scale"]
    assert [patch.get_xy()[0] for patch in patches(fig, "selected")] == [4, 12]
    # Bits 6 and 7 of byte 4 are at the left of its cell, bits 0 to 3 of byte 12 in the right half.
    marks = sorted(patch.get_xy()[0] for patch in patches(fig, "own bit"))
    assert [int(x) for x in marks] == [4, 4, 12, 12, 12, 12]
    assert marks[1] < 4.5 < 12.5 <= marks[2]
    shown = [t.get_text() for t in fig.axes[1].texts if t.get_text() in ("0", "1")]
    assert shown == list(f"{4:08b}{12:08b}"), "highest bit first"
    assert len(patches(fig, "own bit", 1)) == 6
    text = said(fig)
    assert numbers(fig) == ["4", "6", "1152"]
    assert "scale 4, bits 0–3" in text
    assert "12: 12 of 12" in text
    assert "scale 0" not in text


def test_an_f16_shows_both_bytes_its_value_and_one_outline() -> None:
    fig = figures.block_map(q4_k(), n_bytes=144, selected="d")
    (edge,) = patches(fig, "selected")
    assert (edge.get_xy()[0], edge.get_width()) == (0, 2)
    assert not patches(fig, "own bit"), "all bits of both bytes are its own"
    shown = [t.get_text() for t in fig.axes[1].texts if t.get_text() in ("0", "1")]
    assert shown == list(f"{0x0100:016b}")
    assert "256 = 1.5e-05: f16, multiplies every scale" in said(fig)


def test_a_part_and_the_fields_of_a_weight_can_be_selected() -> None:
    fig = figures.block_map(q4_k(), n_bytes=144, selected="scales")
    assert [patch.get_width() for patch in patches(fig, "selected")] == [12]
    assert numbers(fig) == ["24", "96", "1152"]
    assert "… and 16 more" in said(fig)
    fields = [field for field in q4_k() if field.name in ("d", "dmin", "scale 0", "minimum 0", "weight 5")]
    fig = figures.block_map(q4_k(), n_bytes=144, selected=fields)
    assert numbers(fig) == ["5", "48", "1152"]
    assert "weight 5" in said(fig)


def test_what_is_not_in_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no field is called 'scale 9': choose a part \(d, dmin, scales, qs\)"):
        figures.block_map(q4_k(), n_bytes=144, selected="scale 9")
    with pytest.raises(ValueError, match="outside the block of 18 bytes"):
        figures.block_map(q4_k(), n_bytes=18)


def test_bytes_without_a_field_are_said_to_have_none() -> None:
    fig = figures.block_map(simple(("d", 2)), n_bytes=4)
    assert "no field: 2 bytes" in said(fig)
    assert len(patches(fig, "")) >= 2


# block_weights


def test_bars_dots_and_steps_equal_the_input() -> None:
    decoded = W256.round(2)
    scales, minima = np.linspace(0.01, 0.08, 8), np.linspace(-0.1, -0.17, 8)
    fig = figures.block_weights(decoded, scales=scales, minima=minima, original=W256)
    assert [bar.get_height() for bar in bars(fig)["after"]] == pytest.approx(decoded)
    assert line(fig, "before").get_ydata() == pytest.approx(W256)
    (zeros,) = patches(fig, "minimum")
    (steps,) = patches(fig, "scale", 1)
    assert zeros.get_data().values == pytest.approx(minima)
    assert steps.get_data().values == pytest.approx(scales)
    assert steps.get_data().edges == pytest.approx(np.arange(9) * 32 - 0.5)
    errors = np.abs(W256 - decoded)
    assert f"largest error: {errors.max():.2g}" in said(fig)
    share = errors.max() / scales[errors.argmax() // 32]
    rmse = np.sqrt((errors**2).mean())
    assert numbers(fig) == ["256", f"{rmse:.2g}", f"{errors.max():.2g}", f"{share:.2g}"]


def test_sub_blocks_follow_from_the_scales() -> None:
    fig = figures.block_weights(W256, scales=[1.0] * 16)
    assert patches(fig, "scale", 1)[0].get_data().edges == pytest.approx(np.arange(17) * 16 - 0.5)
    assert "a shade for each 16" in said(fig)
    assert len(figures.block_weights(W32, scales=[0.5]).axes) == 1, "one scale needs no panel"
    assert "one scale: 0.5" in said(figures.block_weights(W32, scales=[0.5]))


def test_weights_without_their_originals_are_counted() -> None:
    fit = q4_0(W32)
    n = len(set(np.asarray(fit.decoded).tolist()))
    assert n < 16
    assert numbers(figures.block_weights(fit.decoded)) == ["32", str(n)]
    assert numbers(figures.block_weights(W32, original=W32)) == ["32"], "there is no error to give"


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="original has 31 values: give 32"):
        figures.block_weights(W32, original=W32[:31])
    with pytest.raises(ValueError, match="3 scales for 8 sub-blocks of 32"):
        figures.block_weights(W256, scales=[1, 2, 3], sub_block=32)
    with pytest.raises(ValueError, match="decoded has a value that is no finite number"):
        figures.block_weights([1, math.nan])


# outlier


def test_an_outlier_coarsens_the_grid_by_the_factor_that_is_said() -> None:
    before, after = q4_0(W32), with_outlier(-0.9)
    fig = figures.outlier(before, after)
    others = np.arange(32) != 7
    errors = [
        np.sqrt(((np.asarray(fit.original) - np.asarray(fit.decoded))[others] ** 2).mean()) for fit in (before, after)
    ]
    for error in errors:
        assert f"root mean square error of the others: {error:.2g}" in said(fig)
    largest = np.abs(W32[others]).max()
    assert numbers(fig) == [f"{0.9 / largest:.1f} times", f"{errors[1] / errors[0]:.1f} times"]
    counts = []
    for ax, fit in zip(fig.axes, (before, after), strict=True):
        (after,) = ax.containers
        assert [bar.get_height() for bar in after] == pytest.approx(np.asarray(fit.decoded))
        (dots,) = (found for found in ax.lines if found.get_label() == "before")
        assert dots.get_ydata() == pytest.approx(np.asarray(fit.original))
        (grid,) = (found for found in ax.collections if found.get_label() == "a value it can hold")
        seen = [segment[0][1] for segment in grid.get_segments()]
        low, high = ax.get_ylim()
        assert seen == pytest.approx(sorted(v for v in fit.levels if low <= v <= high))
        counts.append(len(seen))
    assert counts[0] == 16 > counts[1]
    assert fig.axes[0].get_ylim() == fig.axes[1].get_ylim(), "only the same axis can show that steps differ"
    assert "−0.9" in said(fig)
    assert line(fig, "_beyond", 1).get_marker() == "v"


def test_blocks_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="original has 31 values: give 32"):
        figures.outlier(q4_0(W32), q4_0(W32[:31]))
    with pytest.raises(ValueError, match="empty"):
        figures.outlier(BlockFit([], [], []), BlockFit([], [], []))


# error_by_type


def test_errors_are_at_their_bits_mean_solid_and_worst_open() -> None:
    fig = PICTURES["errors"]
    mean, worst = line(fig, "all weights"), line(fig, "worst block")
    assert fig.axes[0].get_yscale() == "log"
    assert list(mean.get_xdata()) == [row.bpw for row in ERRORS]
    assert list(mean.get_ydata()) == [row.rmse for row in ERRORS]
    assert list(worst.get_ydata()) == [row.worst_block_rmse for row in ERRORS]
    assert to_hex(mean.get_markerfacecolor()).upper() == MEASURED
    assert worst.get_markerfacecolor() == "white"
    text = said(fig)
    for row in ERRORS:
        assert row.type in text


def test_the_fitted_line_and_the_title_give_the_factor_per_bit() -> None:
    rows = [ErrorRow(f"Q{bits}", bits, 3 * 2.5**-bits) for bits in (2, 3, 4.5, 8)]
    fig = figures.error_by_type([*rows, ErrorRow("BF16", 16, 1.0)])
    assert numbers(fig) == ["2.5"]
    fit = line(fig, "error ÷ 2.5 per bit")
    for x, y in zip(fit.get_xdata(), fit.get_ydata(), strict=True):
        assert y == pytest.approx(3 * 2.5**-x)


def test_a_type_without_error_is_named_and_not_drawn_as_a_number() -> None:
    fig = figures.error_by_type([*ERRORS, ErrorRow("F16", 16, 0.0)])
    exact = line(fig, "no error")
    assert list(exact.get_xdata()) == [16]
    assert exact.get_marker() == "v"
    assert min(row.rmse for row in ERRORS) > exact.get_ydata()[0]
    assert "F16" in said(fig)
    assert fig.axes[0].get_xscale() == "log", "floats must not squeeze the blocks"


def test_a_guess_of_the_factor_is_a_line_from_the_first_type_on() -> None:
    rows = [ErrorRow(f"Q{bits}", bits, 3 * 2**-bits) for bits in (2, 3, 4.5, 8)]
    fig = figures.error_by_type(rows, guess_factor=1.6)
    own = line(fig, "_guess line")
    for x, y in zip(own.get_xdata(), own.get_ydata(), strict=True):
        assert y == pytest.approx(3 * 2**-2 * 1.6 ** -(x - 2))
    assert guess(fig) == (own.get_xdata()[-1], own.get_ydata()[-1]) and own.get_xdata()[-1] == 8
    assert "you predicted ÷ 1.6 per bit" in said(fig)
    low, high = PICTURES["errors, steep guess"].axes[0].get_ylim()
    assert low < guess(PICTURES["errors, steep guess"])[1] < high, "a steep line ends where it leaves the picture"
    assert_no_guess_draws_nothing(lambda typed: figures.error_by_type(ERRORS, guess_factor=typed))


# block_size


def test_block_sizes_show_both_sides_of_the_trade() -> None:
    fig = figures.block_size(BLOCK_SIZES[::-1])
    error, bits = fig.axes
    assert list(line(fig, "root mean square error").get_ydata()) == [row.rmse for row in BLOCK_SIZES]
    assert list(error.lines[-1].get_xdata()) == [row.block_elems for row in BLOCK_SIZES]
    (drawn,) = (found for found in bits.lines if found.get_marker() == "o")
    assert list(drawn.get_ydata()) == [row.bpw for row in BLOCK_SIZES]
    assert error.get_ylim()[0] == bits.get_ylim()[0] == 0, "heights compare only from 0"
    assert numbers(fig) == ["128", "32", "0.38", "19 %"]
    for name in ("32: ggml", "128: articles", "256: ggml's K", "4.125"):
        assert name in said(fig)


def test_block_size_says_when_larger_blocks_are_not_worse() -> None:
    rows = [BlockSizeRow(32, 4.5, 0.005), BlockSizeRow(128, 4.125, 0.004)]
    assert numbers(figures.block_size(rows))[-1] == "20 %" and "smaller" in said(figures.block_size(rows))
    rows = [BlockSizeRow(16, 5, 0.002), BlockSizeRow(64, 4.25, 0.006)]
    assert numbers(figures.block_size(rows)) == ["64", "16", "0.75", "3.0 times"]


# mixture_map


@pytest.mark.parametrize(
    ("shape", "quant"), [("smollm2-135m", "Q4_K_M"), ("llama-3.1-70b", "Q3_K_M"), ("phi-3-mini", "Q5_K_M")]
)
def test_the_map_has_every_quantized_matrix_once_in_the_shade_of_its_type(shape: str, quant: str) -> None:
    specs = [t for t in tensors(shape, quant) if t.type != "F32"]
    fig = figures.mixture_map(tensors(shape, quant))
    for type_ in {t.type for t in specs}:
        cells = patches(fig, type_)
        assert len(cells) == sum(t.type == type_ for t in specs)
        assert {to_hex(cell.get_facecolor()) for cell in cells} == {shade(TYPES[type_].bpw)}
    assert len(patches(fig, "fallback")) == sum(t.wanted is not None for t in specs)


def test_the_map_says_bits_and_fallbacks() -> None:
    fig = PICTURES["mixture"]
    assert numbers(fig) == ["2", "4.84"], "types, bits per weight, and no fallback"
    assert "4 = Q4_K, 4.5 bits" in said(fig)
    fig = figures.mixture_map(tensors("smollm2-135m", "Q4_K_M"))
    assert numbers(fig)[-2:] == ["180", "211"]
    assert "5 = Q5_0, 5.5 bits" in said(fig)


def test_each_cell_says_its_type_where_kind_and_layer_cross() -> None:
    specs = tensors("llama-2-7b", "Q4_K_M")
    fig = PICTURES["mixture"]
    ax = fig.axes[0]
    kinds = {t.get_text(): t.get_position()[1] for t in ax.texts if t.get_ha() == "right"}
    marks = {t.get_position(): t.get_text() for t in ax.texts if t.get_ha() == "center"}
    for spec in specs:
        if spec.name.startswith("blk.") and spec.type != "F32":
            _, layer, kind, _ = spec.name.split(".")
            (mark,) = (m for (x, y), m in marks.items() if x == int(layer) + 0.5 and abs(y - kinds[kind]) < 0.2)
            assert mark == {"Q4_K": "4", "Q6_K": "6"}[spec.type], spec.name


def test_types_of_equal_bits_have_marks_of_their_own() -> None:
    text = said(PICTURES["mixture, two fives"])
    assert "5K = Q5_K, 5.5 bits" in text
    assert "51 = Q5_1, 6 bits" in text


def test_more_bits_are_darker_in_grey_too() -> None:
    shades = [luma(shade(bpw)) for bpw in (1.5625, 2.625, 3.4375, 4.5, 5.5, 6.5625, 8.5, 16, 32)]
    assert all(a - b > 0.03 for a, b in itertools.pairwise(shades)), shades


def test_an_unknown_type_is_refused() -> None:
    (spec, *_) = tensors("llama-2-7b", "Q4_K_M")
    with pytest.raises(ValueError, match="has the type 'Q9_Z': give a type that ggml knows"):
        figures.mixture_map([replace(spec, type="Q9_Z")])


# size_grid


def test_the_grid_prints_every_number_in_its_cell() -> None:
    values = [[13.5, 3.801, 0.081], [131.4, None, 24.62]]
    fig = figures.size_grid(["7B", "70B"], ["F16", "Q4_K_M", "Q2_K"], values, unit="GiB")
    shown = {t.get_position(): t.get_text() for t in fig.axes[0].texts}
    assert shown == {
        (0.5, 0.52): "13.5",
        (1.5, 0.52): "3.80",
        (2.5, 0.52): "0.081",
        (0.5, 1.52): "131",
        (2.5, 1.52): "24.6",
    }
    cells = fig.axes[0].patches
    assert len(cells) == 6
    assert [bool(cell.get_hatch()) for cell in cells] == [False, False, False, False, True, False]
    grey = [luma(to_hex(cell.get_facecolor())) for cell in cells]
    assert grey[3] < grey[5] < grey[1] < grey[2], "the more, the darker"
    assert "hatched" in said(fig)
    with pytest.raises(ValueError, match="do not fill 1 rows of 2 columns"):
        figures.size_grid(["7B"], ["F16", "Q4_K_M"], [[1.0]], unit="GiB")


def test_titles_of_grids_name_what_varies_most() -> None:
    rows, columns = ["7B", "135M"], ["F16", "Q4_K_M"]
    bits = figures.size_grid(rows, columns, [[16, 4.84], [16, 6.17]], unit="bits per weight")
    assert "Q4_K_M" in bits.get_suptitle() and numbers(bits)[-2:] == ["4.84", "6.17"]
    assert to_hex(bits.axes[0].patches[1].get_facecolor()) == shade(4.84)
    share = figures.size_grid(rows, columns, [[100, 30.3], [100, 38.6]], unit="% of F16")
    assert numbers(share)[1:3] == ["30", "39 %"]
    size = figures.size_grid(rows, columns, [[12.6, 3.8], [0.25, 0.1]], unit="GiB")
    assert numbers(size) == ["3.3 times"]


# what_a_bit_buys


def test_size_and_divergence_of_each_file_are_where_they_belong() -> None:
    fig = PICTURES["bits"]
    text = said(fig)
    for row in BITS:
        mark = line(fig, row.label)
        assert mark.get_xdata()[0] == pytest.approx(row.file_bytes / MiB)
        assert mark.get_ydata()[0] == row.kld
        assert f"{row.label} {row.kld:.3g}, {row.tokens_per_s:.0f}/s" in text
    assert [n for n in numbers(fig) if n[-1] in "%s"] == ["61 %", "88 times", "52 %"]


def test_the_area_of_a_mark_is_the_speed() -> None:
    fig = PICTURES["bits"]
    areas = {row.label: line(fig, row.label).get_markersize() ** 2 for row in BITS}
    assert areas["Q4_0"] / areas["IQ4_XS"] == pytest.approx(213 / 100)
    untimed = line(figures.what_a_bit_buys([replace(BITS[0], tokens_per_s=None)]), "Q8_0")
    assert untimed.get_markerfacecolor() == "white"
    assert "speed not measured" in said(figures.what_a_bit_buys([replace(BITS[0], tokens_per_s=None), *BITS[1:]]))


def test_arrows_lead_from_without_to_with_an_imatrix() -> None:
    fig = PICTURES["bits"]
    arrows = [text for text in fig.axes[0].texts if text.arrow_patch is not None]
    found = {(arrow.get_position()[1], arrow.xy[1]) for arrow in arrows}
    assert found == {(row.kld, row.kld_imatrix) for row in BITS if row.kld_imatrix is not None}
    assert {arrow.xy[0] for arrow in arrows} == {row.file_bytes / MiB for row in BITS if row.kld_imatrix is not None}


def test_the_reference_stands_on_the_axis_and_is_named() -> None:
    fig = figures.what_a_bit_buys([F16, *BITS], reference="F16, itself dequantized from Q4_1")
    assert line(fig, "F16").get_marker() == "v"
    text = said(fig)
    assert "F16 no divergence, 110/s" in text
    assert "reference: F16, itself dequantized from Q4_1" in text


def test_a_guess_of_how_many_times_is_drawn_at_its_file() -> None:
    fig = figures.what_a_bit_buys(BITS, guess_times=("Q4_0", "Q8_0", 4))
    assert guess(fig) == (pytest.approx(87), pytest.approx(0.02))
    assert "you predicted 4 × Q8_0 = 0.02" in said(fig)
    assert "beyond this axis" in said(PICTURES["bits, guess beyond"])
    assert_no_guess_draws_nothing(lambda typed: figures.what_a_bit_buys(BITS, guess_times=("Q4_0", "Q8_0", typed)))


# labels


@pytest.mark.parametrize(
    "name", ["errors, floats", "errors, in one place", "bits, with the reference", "bits, far apart"]
)
def test_no_label_is_lost_in_a_crowd(name: str) -> None:
    text = said(PICTURES[name])
    rows = [row.type for row in ERRORS] if name.startswith("errors") else [row.label for row in BITS]
    for label in rows:
        assert label in text, label
