"""Pictures of lab 00: figures in them equal the input, and no text is lost or covered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from support.pictures import (
    LONG,
    Album,
    assert_legible,
    assert_no_guess_draws_nothing,
    assert_well_made,
    bars,
    guess,
    numbers,
    said,
    words,
)
from support.speeds import BANDWIDTH, LARGE, SMALL, speed_row

from labkit.course import figures
from labkit.course.figurekit.style import MEASURED
from labkit.system._os import Limit
from labkit.system.machine import Machine
from labkit.units import GiB, MiB

pytestmark = pytest.mark.filterwarnings("error")


def machine(**changes: object) -> Machine:
    base = Machine(
        system="Linux",
        ram_bytes=24 * GiB,
        available_bytes=21 * GiB,
        swap_bytes=0,
        page_bytes=4096,
        readahead_bytes=131072,
        memlock_bytes=8 * MiB,
        memlock_unlimited=False,
        ipc_lock=False,
        cores=2,
        cpu_quota=None,
        cpu_name="AMD EPYC",
        l3_bytes=32 * MiB,
        psi=None,
        limits=(Limit("MemTotal", 24 * GiB, None),),
        reasons={},
        limit_bytes=24 * GiB,
        limit_by="MemTotal",
        lockable_bytes=8 * MiB,
    )
    return replace(base, **changes)


CLUSTER = [speed_row(f"SmolLM2 variant {n}", (80 + n) * MiB, None, 6.2 + n / 100) for n in range(9)]
TINY = machine(
    ram_bytes=512 * GiB,
    limit_bytes=2 * GiB,
    available_bytes=300 * MiB,
    swap_bytes=2048 * GiB,
    limit_by="cgroup v2 /kubepods.slice/kubepods-burstable.slice/pod0e1f2a3b.slice/cri-0123456789abcdef.scope",
    cpu_name="Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz, a name that goes on for longer than a line can hold",
    cpu_quota=0.5,
)
UNREADABLE = machine(
    **dict.fromkeys(("ram_bytes", "limit_bytes", "available_bytes", "swap_bytes", "lockable_bytes", "memlock_bytes")),
    limit_by=None,
    reasons={"ram_bytes": "this system keeps it to itself, and has done so through many versions that all said " * 3},
)


def speeds(*rows: figures.SpeedRow, **options: object) -> Figure:
    return figures.speed_check(rows, bandwidth_bytes_per_s=BANDWIDTH, **options)


PICTURES = Album(
    {
        "machine": lambda: figures.machine_card(machine()),
        "machine, guess": lambda: figures.machine_card(machine(), guess_gib=8),
        "machine, guess beyond": lambda: figures.machine_card(machine(), guess_gib=100),
        "machine, tiny": lambda: figures.machine_card(TINY),
        "machine, root": lambda: figures.machine_card(machine(ipc_lock=True, lockable_bytes=24 * GiB)),
        "machine, nothing readable": lambda: figures.machine_card(UNREADABLE, guess_gib=8),
        "speed": lambda: speeds(SMALL, LARGE, guess_ms={SMALL.label: 8.0, LARGE.label: 1e6}),
        "speed, nothing measured": lambda: speeds(speed_row(LONG, GiB, None, None)),
        "speed, 100 times": lambda: speeds(speed_row(LONG, GiB, 32, 3200), LARGE, SMALL),
        "speed, fixed axis": lambda: speeds(SMALL, axis_ms={SMALL.label: 3}),
        "roofline": lambda: figures.roofline([SMALL, LARGE], BANDWIDTH),
        "roofline, cluster": lambda: figures.roofline([*CLUSTER, LARGE], BANDWIDTH),
        "roofline, far": lambda: figures.roofline([SMALL, speed_row(LONG, 400 * GiB, None, 90000)], BANDWIDTH),
        "roofline, other bandwidth": lambda: figures.roofline([SMALL, LARGE], 1000 * GiB),
        "roofline, none": lambda: figures.roofline([speed_row("x", GiB, None, None)], BANDWIDTH),
        "mechanisms": figures.mechanisms,
    }
)


@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_inside_the_picture_and_clear_of_the_others(name: str) -> None:
    assert_well_made(PICTURES[name])


# machine_card


def test_machine_card_names_the_limit_that_binds() -> None:
    fig = figures.machine_card(machine(limit_bytes=2 * GiB, limit_by="cgroup v2 /user.slice", available_bytes=GiB))
    text = words(fig)
    assert "2.00 GiB, set by cgroup v2 /user.slice" in text
    assert numbers(fig) == ["2.00 GiB", "24.0 GiB"]
    assert "8.00 MiB (RLIMIT_MEMLOCK)" in text
    assert "2 usable, L3 cache 32.0 MiB" in text
    widths = {label: found[0].get_width() for label, found in bars(fig).items()}
    assert widths == {
        "ram_bytes": 24,
        "limit_bytes": 2,
        "available_bytes": 1,
        "lockable_bytes": 8 / 1024,
        "swap_bytes": 0,
    }


def test_machine_card_never_draws_a_missing_figure_as_zero() -> None:
    fig = figures.machine_card(
        machine(swap_bytes=None, lockable_bytes=None, memlock_bytes=None, reasons={"swap_bytes": "no /proc/swaps"})
    )
    assert "not readable here: no /proc/swaps" in words(fig)
    assert not {"swap_bytes", "lockable_bytes"} & set(bars(fig))
    assert "none" in words(figures.machine_card(machine(swap_bytes=0))), "no swap is a figure, not a gap"


def test_machine_card_says_why_everything_may_be_locked() -> None:
    root = machine(ipc_lock=True, lockable_bytes=24 * GiB)
    assert "up to 24.0 GiB (CAP_IPC_LOCK)" in words(figures.machine_card(root))
    free = machine(memlock_unlimited=True, memlock_bytes=None, lockable_bytes=24 * GiB)
    assert "RLIMIT_MEMLOCK is unlimited" in words(figures.machine_card(free))


def test_a_guess_of_the_available_memory_is_drawn_below_its_bar() -> None:
    assert guess(PICTURES["machine, guess"]) == (8, 2.5)
    assert "21.0 GiB; you predicted 8.00 GiB" in said(PICTURES["machine, guess"])
    beyond = PICTURES["machine, guess beyond"]
    assert "you predicted 100 GiB, beyond this axis" in said(beyond)
    assert_no_guess_draws_nothing(lambda typed: figures.machine_card(machine(), guess_gib=typed))


# speed_check and roofline


def test_speed_bars_are_as_long_as_the_milliseconds() -> None:
    fig = speeds(SMALL, LARGE)
    for ax, row in zip(fig.axes, (SMALL, LARGE), strict=True):
        roof, overhead, measured = (container[0] for container in ax.containers)
        assert roof.get_width() == pytest.approx(row.roofline_ms)
        assert overhead.get_width() == row.predicted_ms
        assert measured.get_width() == row.measured_ms
        assert roof.get_hatch()
        assert not overhead.get_hatch()
        assert overhead.get_linestyle() == "--"
        assert measured.get_facecolor() == to_rgba(MEASURED)
    text = words(fig)
    assert "measured: 6.20 ms, 161 tokens/s" in text
    assert "bytes / bandwidth of 31.3 GiB/s: 119 ms" in text
    assert numbers(fig)[-1] == "40 %" and "93 %" in numbers(fig)


def test_speed_guess_is_a_black_diamond_at_its_value() -> None:
    fig = speeds(SMALL, guess_ms={SMALL.label: 8.0})
    assert guess(fig)[0] == 8.0
    assert "you predicted 8.00 ms, 125 tokens/s" in words(fig)
    assert_no_guess_draws_nothing(lambda typed: speeds(SMALL, guess_ms={SMALL.label: typed}))


def test_speed_guess_far_away_does_not_squeeze_the_bars() -> None:
    fig = speeds(SMALL, guess_ms={SMALL.label: 5000.0})
    assert fig.axes[0].get_xlim()[1] < 30
    assert "you predicted 5.00 s, 0.2 tokens/s, beyond this axis" in words(fig)


def test_a_fixed_axis_stays_and_a_longer_bar_says_so() -> None:
    ends = {SMALL.label: 2 * SMALL.roofline_ms}
    for ms in (0.1, SMALL.roofline_ms, 5 * SMALL.roofline_ms):
        row = replace(SMALL, roofline_ms=ms, predicted_ms=None, measured_ms=None)
        fig = speeds(row, axis_ms=ends)
        assert_legible(fig)
        assert fig.axes[0].get_xlim() == (0, ends[SMALL.label])
        assert ("beyond this axis" in said(fig)) == (ms > ends[SMALL.label])
        assert fig.axes[0].patches[0].get_width() == ms


def test_roofline_is_bytes_over_bandwidth() -> None:
    fig = PICTURES["roofline"]
    roof, *points = (line for line in fig.axes[0].lines if line.get_label() != "_lead")
    for x_gib, ms in zip(roof.get_xdata(), roof.get_ydata(), strict=True):
        assert ms == pytest.approx(x_gib * GiB / BANDWIDTH * 1000)
    assert [(p.get_xdata()[0], p.get_ydata()[0]) for p in points] == [
        (pytest.approx(80 / 1024), 6.2),
        (pytest.approx(3.73), 128.0),
    ]
    assert "6.20 ms, 40 %" in words(fig)
    assert "128 ms, 93 %" in words(fig)


def test_roofline_shares_follow_the_bandwidth_that_is_drawn() -> None:
    text = words(figures.roofline([SMALL, LARGE], 2 * BANDWIDTH))
    assert "6.20 ms, 20 %" in text
    assert "at 62.6 GiB/s" in text


def test_roofline_keeps_every_name_when_points_are_close() -> None:
    text = words(PICTURES["roofline, cluster"])
    for row in [*CLUSTER, LARGE]:
        assert row.label in text


# mechanisms


def test_mechanisms_shows_the_lab_of_each() -> None:
    text = words(PICTURES["mechanisms"]).split("\n")
    for number in ("01", "02", "03", "04", "05"):
        assert text.count(number) == 2, "once on the drawing, once in the key"
    assert {"mapped weights", "KV cache", "page cache", "disk", "CPU", "GPU"} <= set(text)
