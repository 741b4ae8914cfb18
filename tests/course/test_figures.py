"""Pictures: figures in them equal the input, marks mean what the legend says, and every text can be read."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from PIL import Image
from support.memory_runs import killed, predicted, run
from support.pictures import LONG, assert_legible, bars, words
from support.speeds import BANDWIDTH, LARGE, SMALL, speed_row

from labkit.course import figures
from labkit.course.figurekit.memory_split import measured_split, predicted_split
from labkit.course.figurekit.style import KINDS, LIMIT, MEASURED
from labkit.course.figures import CliffPoint
from labkit.course.lab01.figures.residency import MAX_CELLS, binned
from labkit.experiments.run import LayerStep
from labkit.gguf import Tensor
from labkit.settings import Settings
from labkit.system._os import Limit
from labkit.system.machine import Machine
from labkit.units import GiB, MiB


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
SWEEP = [
    CliffPoint(cap * MiB, (ms * 0.9, ms, ms * 1.2))
    for cap, ms in [(900, 40), (780, 41), (720, 40), (690, 39), (660, 171), (640, 332), (600, 458), (500, 392)]
]
GONE = [CliffPoint(130 * MiB, None, "timed-out"), *(CliffPoint(mib * MiB, None, "oom-killed") for mib in (40, 30))]


def tensors(layers: int) -> list[Tensor]:
    sizes = [("token_embd.weight", 28 * MiB), ("output_norm.weight", 2304)]
    sizes += [(f"blk.{n}.{part}.weight", MiB) for n in range(layers) for part in ("attn_q", "ffn_up")]
    at, found = 1_700_000, []
    for name, size in sizes:
        found.append(Tensor(name, (576,), "Q4_1", at, size, 0))
        at += size
    return found


def steps(*ms: float, token: int = 0) -> list[LayerStep]:
    return [LayerStep(token, n, t, minor_faults=3, major_faults=n, read_bytes=n * MiB) for n, t in enumerate(ms)]


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
HUGE = run(
    predicted=predicted(file=400 * GiB),
    measured=replace(run().measured, rss_file_bytes=400 * GiB),
    model=replace(run().model, name=LONG),
)
REFUSED = run(outcome="refused", reason="no cap is possible here and " * 9, measured=None, samples=(), phases=())
LOCKED = run(
    settings=Settings(load_mode="mmap+mlock"),
    predicted=predicted(locked=3890 * MiB),
    measured=replace(run().measured, locked_bytes=3890 * MiB),
)

PICTURES = {
    "machine": lambda: figures.machine_card(machine()),
    "machine, tiny": lambda: figures.machine_card(TINY),
    "machine, root": lambda: figures.machine_card(machine(ipc_lock=True, lockable_bytes=24 * GiB)),
    "machine, nothing readable": lambda: figures.machine_card(UNREADABLE),
    "speed": lambda: figures.speed_check(
        [SMALL, LARGE], bandwidth_bytes_per_s=BANDWIDTH, guess={SMALL.label: 8.0, LARGE.label: 1e6}
    ),
    "speed, nothing measured": lambda: figures.speed_check(
        [speed_row(LONG, GiB, None, None)], bandwidth_bytes_per_s=BANDWIDTH
    ),
    "speed, 100 times": lambda: figures.speed_check(
        [speed_row(LONG, GiB, 32, 3200), LARGE, SMALL], bandwidth_bytes_per_s=BANDWIDTH
    ),
    "roofline": lambda: figures.roofline([SMALL, LARGE], BANDWIDTH),
    "roofline, cluster": lambda: figures.roofline([*CLUSTER, LARGE], BANDWIDTH),
    "roofline, far": lambda: figures.roofline([SMALL, speed_row(LONG, 400 * GiB, None, 90000)], BANDWIDTH),
    "roofline, other bandwidth": lambda: figures.roofline([SMALL, LARGE], 1000 * GiB),
    "roofline, none": lambda: figures.roofline([speed_row("x", GiB, None, None)], BANDWIDTH),
    "mechanisms": figures.mechanisms,
    "memory": lambda: figures.where_the_model_is([run(), LOCKED], limit_bytes=8 * GiB),
    "memory, killed": lambda: figures.where_the_model_is([killed(), killed(measured=None, samples=()), REFUSED]),
    "memory, 100 times": lambda: figures.where_the_model_is(
        [killed(), HUGE, run()], labels=["135M", LONG, "7B"], limit_bytes=2 * GiB
    ),
    "memory, limit far": lambda: figures.where_the_model_is([run()], limit_bytes=900 * GiB),
    "strip": lambda: figures.residency_strip(
        [0, 1, 0.5], [0, 0, 0], file_bytes=100 * MiB, tensors=tensors(30), caption="One page was touched. " * 9
    ),
    "strip, many layers": lambda: figures.residency_strip([1, 0], file_bytes=300 * MiB, tensors=tensors(120)),
    "strip, unreadable": lambda: figures.residency_strip(None, [1.0]),
    "layers": lambda: figures.layer_faults(steps(*[70.0] * 30), compare=steps(*[2.0] * 30)),
    "layers, one slow": lambda: figures.layer_faults(
        steps(1, 1, 1, 4000),
        compare=steps(1, 1, 1, 1),
        labels=("first, with readahead off", "second, with readahead on"),
    ),
    "layers, none": lambda: figures.layer_faults([]),
    "cliff": lambda: figures.cliff(SWEEP, needed_bytes=686 * MiB, predicted=(39, 332)),
    "cliff, killed": lambda: figures.cliff(
        SWEEP + GONE, needed_bytes=686 * MiB, predicted=(39, 332), floor_bytes=42 * MiB, guess=(90, 120)
    ),
    "cliff, all killed": lambda: figures.cliff(GONE, needed_bytes=686 * MiB, predicted=(39, 332)),
    "cliff, 100 times": lambda: figures.cliff(
        [*SWEEP, CliffPoint(400 * MiB, (900.0, 45000.0))], needed_bytes=686 * MiB, predicted=(39, 332)
    ),
    "timeline": lambda: figures.timeline(run(cap_bytes=14 * GiB)),
    "timeline, killed": lambda: figures.timeline(killed()),
    "timeline, short phases": lambda: figures.timeline(
        run(phases=tuple(replace(p, start_s=3.9 + n / 50, end_s=3.91 + n / 50) for n, p in enumerate(run().phases)))
    ),
    "timeline, one sample": lambda: figures.timeline(killed(samples=killed().samples[:1], phases=())),
    "timeline, none": lambda: figures.timeline(REFUSED),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_inside_the_picture_and_clear_of_the_others(name: str) -> None:
    fig = PICTURES[name]()
    assert isinstance(fig, Figure)
    assert fig.get_figwidth() == 7.5
    title = fig.get_suptitle()
    assert title[0].isalnum()
    assert len(title.split()) >= 5, "a title is a sentence"
    assert_legible(fig)


def test_colours_are_those_of_the_course() -> None:
    assert {key: kind.colour for key, kind in KINDS.items()} == {
        "file": "#0072B2",
        "heap": "#56B4E9",
        "repack": "#CC79A7",
        "kv": "#009E73",
        "compute": "#E69F00",
        "python": "#999999",
    }
    assert LIMIT == "#D55E00"
    assert len({kind.hatch for kind in KINDS.values()}) == len(KINDS), "predicted parts must differ without colour"


# where_the_model_is


def test_bars_are_as_long_as_the_memory_in_gib() -> None:
    fig = figures.where_the_model_is([run()])
    found = bars(fig)
    assert found["measured file"].get_width() == pytest.approx(3912 / 1024)
    assert found["measured repack"].get_width() == pytest.approx(2943 / 1024)
    assert found["measured repack"].get_x() == pytest.approx(3912 / 1024)
    assert found["predicted kv"].get_width() == pytest.approx(256 / 1024)
    assert "resident memory, GiB" in words(fig)


def test_predicted_is_hatched_and_measured_is_solid_in_the_colour_of_the_kind() -> None:
    for label, bar in bars(figures.where_the_model_is([run()])).items():
        state, key = label.split()
        if state == "measured":
            assert not bar.get_hatch()
            assert bar.get_facecolor() == to_rgba(KINDS[key].colour)
        else:
            assert bar.get_hatch() == KINDS[key].hatch
            assert bar.get_edgecolor() == to_rgba(KINDS[key].colour)


def test_totals_and_title_say_the_figures() -> None:
    text = words(figures.where_the_model_is([run(), LOCKED]))
    assert "7.01 GiB measured" in text
    assert "7.00 GiB predicted" in text
    assert "3.80 GiB locked" in text
    assert "A 3.80 GiB model takes 7.01 GiB of memory, however it is loaded" in text


def test_locked_memory_has_a_dark_edge_as_long_as_it_is() -> None:
    edges = [p for p in figures.where_the_model_is([LOCKED]).axes[0].patches if p.get_label() == "locked"]
    assert [edge.get_width() for edge in edges] == pytest.approx([3890 / 1024] * 2)
    assert not [p for p in figures.where_the_model_is([run()]).axes[0].patches if p.get_label() == "locked"]


def test_limit_is_a_dotted_vermilion_line_with_its_figure() -> None:
    fig = figures.where_the_model_is([run()], limit_bytes=8 * GiB)
    (line,) = (line for line in fig.axes[0].lines if to_hex(line.get_color()).upper() == LIMIT)
    assert line.get_linestyle() == ":"
    assert list(line.get_xdata()) == [8, 8]
    assert "limit 8.00 GiB" in words(fig)
    assert "limit 900 GiB, beyond this axis" in words(figures.where_the_model_is([run()], limit_bytes=900 * GiB))


def test_a_killed_run_says_so_at_its_cap() -> None:
    fig = figures.where_the_model_is([killed()])
    text = words(fig)
    assert "killed for memory at 600 MiB" in text
    assert "(cap 600 MiB)" in text
    assert "is killed for memory in 1 of 1 runs" in text
    (cross,) = (line for line in fig.axes[0].lines if line.get_marker() == "X")
    assert cross.get_xdata()[0] == 600


def test_a_refused_run_gives_its_reason_and_no_measured_bar() -> None:
    fig = figures.where_the_model_is([REFUSED])
    assert "refused: no cap is possible here" in words(fig)
    assert not any(label.startswith("measured") for label in bars(fig))


def test_labels_must_match_the_runs() -> None:
    with pytest.raises(ValueError, match="2 labels for 1 runs"):
        figures.where_the_model_is([run()], labels=["a", "b"])


def test_predicted_split_adds_up_to_the_predicted_resident_set() -> None:
    split = predicted_split(run())
    assert sum(split.values()) == run().predicted.rss_anon_bytes + run().predicted.rss_file_bytes
    assert split["compute"] == 20 * MiB, "only the touched part of the buffer is resident"


def test_measured_split_adds_up_and_leaves_out_other_devices() -> None:
    split = measured_split(run())
    assert split == {
        "file": 3912 * MiB,
        "heap": 0,
        "repack": 2943 * MiB,
        "kv": 256 * MiB,
        "compute": 24 * MiB,
        "python": 42 * MiB,
    }


def test_measured_split_of_a_run_killed_while_loading_is_weights_on_the_heap() -> None:
    split = measured_split(killed())
    assert split is not None
    assert split["heap"] == (575 - 24) * MiB
    assert split["python"] == 24 * MiB
    assert split["kv"] == split["compute"] == 0


def test_measured_split_without_figures_is_none() -> None:
    assert measured_split(REFUSED) is None
    assert measured_split(run(measured=replace(run().measured, rss_anon_bytes=None))) is None


# machine_card


def test_machine_card_names_the_limit_that_binds() -> None:
    fig = figures.machine_card(machine(limit_bytes=2 * GiB, limit_by="cgroup v2 /user.slice", available_bytes=GiB))
    text = words(fig)
    assert "2.00 GiB, set by cgroup v2 /user.slice" in text
    assert "A process here may use 2.00 GiB of the machine's 24.0 GiB" in text
    assert "8.00 MiB (RLIMIT_MEMLOCK)" in text
    assert "2 usable, L3 cache 32.0 MiB" in text
    assert bars(fig)["ram_bytes"].get_width() == 24
    assert bars(fig)["limit_bytes"].get_width() == 2
    assert bars(fig)["available_bytes"].get_width() == 1


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


# speed_check and roofline


def test_speed_bars_are_as_long_as_the_milliseconds() -> None:
    fig = figures.speed_check([SMALL, LARGE], bandwidth_bytes_per_s=BANDWIDTH)
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
    assert "llama-2-7b Q4_K_M reaches 93 % of its roofline, SmolLM2-135M Q4_1 reaches 40 %" in text.replace("\n", " ")


def test_speed_guess_is_a_black_diamond_at_its_value() -> None:
    fig = figures.speed_check([SMALL], bandwidth_bytes_per_s=BANDWIDTH, guess={SMALL.label: 8.0})
    (diamond,) = fig.axes[0].lines
    assert diamond.get_marker() == "D"
    assert diamond.get_xdata()[0] == 8.0
    assert to_hex(diamond.get_color()) == "#000000"
    assert "you predicted 8.00 ms, 125 tokens/s" in words(fig)


def test_speed_guess_far_away_does_not_squeeze_the_bars() -> None:
    fig = figures.speed_check([SMALL], bandwidth_bytes_per_s=BANDWIDTH, guess={SMALL.label: 5000.0})
    assert fig.axes[0].get_xlim()[1] < 30
    assert "you predicted 5.00 s, 0.2 tokens/s, beyond this axis" in words(fig)


def test_roofline_is_bytes_over_bandwidth() -> None:
    fig = figures.roofline([SMALL, LARGE], BANDWIDTH)
    line, *points = fig.axes[0].lines
    for x_gib, ms in zip(line.get_xdata(), line.get_ydata(), strict=True):
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
    text = words(figures.roofline([*CLUSTER, LARGE], BANDWIDTH))
    for row in [*CLUSTER, LARGE]:
        assert row.label in text


# cliff


def test_cliff_runs_from_large_caps_to_small_ones_in_percent_of_the_need() -> None:
    fig = figures.cliff(SWEEP, needed_bytes=686 * MiB, predicted=(39, 332))
    ax = fig.axes[0]
    assert ax.get_xlim()[0] > 100 * 900 / 686 > 100 * 500 / 686 > ax.get_xlim()[1]
    (measured,) = (line for line in ax.lines if line.get_marker() == "o")
    assert measured.get_xdata()[0] == pytest.approx(100 * 900 / 686)
    assert list(measured.get_ydata()) == [40, 41, 40, 39, 171, 332, 458, 392]
    step = ax.lines[0]
    assert step.get_linestyle() == "--"
    assert list(step.get_ydata()) == [39, 39, 332, 332]
    assert list(step.get_xdata())[1:3] == [100, 100]
    text = words(fig)
    assert "cap = all it needs, 686 MiB" in text
    assert "A little too small is up to 11 times too slow" in text
    assert "measured, median of 3 (whiskers: min to max)" in text


def test_cliff_whiskers_reach_from_the_lowest_to_the_highest() -> None:
    fig = figures.cliff([CliffPoint(GiB, (30.0, 40.0, 70.0))], needed_bytes=GiB, predicted=(39, 332))
    (whisker,) = (line for line in fig.axes[0].collections if len(line.get_segments()) == 1)
    assert whisker.get_segments()[0][:, 1] == pytest.approx([30.0, 70.0])


def test_cliff_marks_runs_that_gave_no_figure() -> None:
    fig = figures.cliff(
        SWEEP + GONE, needed_bytes=686 * MiB, predicted=(39, 332), floor_bytes=42 * MiB, guess=(90, 120)
    )
    crosses = [line for line in fig.axes[0].lines if line.get_marker() == "X"]
    assert [list(line.get_xdata()) for line in crosses] == [
        [pytest.approx(100 * 130 / 686)],
        [pytest.approx(100 * 40 / 686), pytest.approx(100 * 30 / 686)],
    ]
    text = words(fig)
    assert "killed" in text
    assert "timed-out" in text
    assert "cap = its anonymous memory, 42.0 MiB" in text
    assert "you predicted: 120 ms at 90 %" in text


def test_cliff_counts_a_run_that_was_killed_after_some_tokens_as_killed() -> None:
    fig = figures.cliff([CliffPoint(GiB, (40.0, 41.0), "oom-killed")], needed_bytes=GiB, predicted=(39, 332))
    assert [line.get_marker() for line in fig.axes[0].lines if line.get_marker() in "oX"] == ["X"]
    assert "No run under these caps came through" in words(fig)


# timeline


def test_timeline_stacks_file_on_anonymous() -> None:
    fig = figures.timeline(run())
    ax = fig.axes[0]
    anonymous, mapped = ax.collections[:2]
    assert anonymous.get_paths()[0].vertices[:, 1].max() == pytest.approx(40 * 80 / 1024)
    assert mapped.get_paths()[0].vertices[:, 1].max() == pytest.approx((40 * 80 + 3912) / 1024)
    assert to_hex(mapped.get_facecolor()[0]).upper() == KINDS["file"].colour
    text = words(fig)
    assert "llama-2-7b:Q4_K_M holds 6.95 GiB at its peak" in text
    for name in ("start", "load", "context", "decode"):
        assert name in text


def test_timeline_shows_the_cap_and_the_death() -> None:
    fig = figures.timeline(killed())
    text = words(fig)
    assert "cap 600 MiB" in text
    assert "killed after 4.00 s, last seen at 582 MiB" in text
    assert "cap 14.0 GiB, above this axis" in words(figures.timeline(run(cap_bytes=14 * GiB)))


# residency_strip and layer_faults


def test_binning_keeps_the_share_and_the_limit_of_cells() -> None:
    rng = np.random.default_rng(1)
    pages = (rng.random(512 * 37) < 0.3).astype(float)
    cells = binned(pages)
    assert cells.size == MAX_CELLS
    assert cells == pytest.approx(pages.reshape(512, 37).mean(axis=1))
    assert binned(np.array([0.5, 1.0])).tolist() == [0.5, 1.0]
    assert binned(np.arange(1000.0)).size == MAX_CELLS


def test_strip_says_how_much_is_resident() -> None:
    pages = np.zeros(1000, dtype=bool)
    pages[:370] = True
    text = words(figures.residency_strip(pages, np.zeros(1000), file_bytes=1000 * 4096, tensors=tensors(2)[:1]))
    assert "37 % of the file is in the page cache, 0 % in this process" in text
    assert "page cache\n37 %, 1.45 MiB" in text
    assert "token_embd" in text


def test_strip_shows_a_single_page_of_many() -> None:
    pages = np.zeros(1_000_000)
    pages[777_777] = 1
    fig = figures.residency_strip(pages)
    shades = fig.axes[0].images[0].get_array()
    assert (shades > 0).sum() == 1
    assert shades.max() > 0.3
    assert "Under 1 % of the file is in the page cache" in words(fig)


def test_strip_needs_the_file_size_to_place_tensors() -> None:
    with pytest.raises(ValueError, match="give file_bytes too"):
        figures.residency_strip([1.0], tensors=tensors(1))


def test_layer_bars_are_means_over_tokens() -> None:
    fig = figures.layer_faults(steps(10, 20) + steps(30, 60, token=1), compare=steps(1, 2))
    ms, mib, faults = ([patch.get_height() for patch in ax.containers[0]] for ax in fig.axes)
    assert ms == [20, 40]
    assert mib == [0, 1]
    assert faults == [0, 1]
    assert list(fig.axes[0].lines[0].get_ydata()) == [1, 2]
    text = words(fig)
    assert "The layers of a token take 60.0 ms (cold) and 3.00 ms (warm)" in text
    assert "cold: 1.00 MiB; warm: 1.00 MiB" in text


def test_mechanisms_shows_the_lab_of_each() -> None:
    text = words(figures.mechanisms()).split("\n")
    for number in ("01", "02", "03", "04", "05"):
        assert text.count(number) == 2, "once on the drawing, once in the key"
    assert {"mapped weights", "KV cache", "page cache", "disk", "CPU", "GPU"} <= set(text)


# png, show and style


def test_png_is_crisp_small_and_keeps_the_flat_colours() -> None:
    data = figures.png(figures.where_the_model_is([run(), LOCKED]))
    picture = Image.open(io.BytesIO(data))
    assert picture.width == 1080
    assert len(data) < 60_000
    colours = {to_hex(np.array(rgb) / 255).upper() for _, rgb in picture.convert("RGB").getcolors(1 << 20)}
    assert {"#FFFFFF", KINDS["file"].colour, KINDS["repack"].colour, KINDS["kv"].colour} <= colours


def test_show_gives_a_fixed_width_and_the_text_for_those_who_cannot_see() -> None:
    pytest.importorskip("IPython")
    shown = figures.show(figures.mechanisms(), "Where the mechanisms act.")
    data, metadata = shown._repr_png_()
    assert len(data) > 1000
    assert metadata == {"width": 760, "alt": "Where the mechanisms act."}


def test_a_notebook_style_does_not_reach_the_pictures() -> None:
    plain = figures.png(figures.mechanisms())
    with matplotlib.rc_context(
        {"text.color": "white", "font.size": 20, "axes.facecolor": "black", "hatch.linewidth": 9}
    ):
        assert figures.png(figures.mechanisms()) == plain
        assert matplotlib.rcParams["font.size"] == 20


def test_pictures_do_not_need_pyplot() -> None:
    code = (
        "import sys\nfrom labkit import figures\nfigures.png(figures.mechanisms())\n"
        "print('matplotlib.pyplot' in sys.modules, 'IPython' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]
