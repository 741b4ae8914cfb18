"""Pictures of lab 01: figures in them equal the input, marks mean what the legend says, and every text can be read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from support.memory_runs import killed, predicted, run
from support.pictures import (
    LONG,
    Album,
    assert_no_guess_draws_nothing,
    assert_well_made,
    bars,
    guess,
    line,
    lines,
    numbers,
    patches,
    said,
    words,
)

from labkit.course import figures
from labkit.course.figurekit.style import KINDS, LIMIT
from labkit.course.figures import CliffPoint
from labkit.course.lab01.figures.residency import MAX_CELLS, binned
from labkit.experiments.run import LayerStep
from labkit.gguf import Tensor
from labkit.settings import Settings
from labkit.units import GiB, MiB

pytestmark = pytest.mark.filterwarnings("error")

SWEEP = [
    CliffPoint(cap * MiB, (ms * 0.9, ms, ms * 1.2))
    for cap, ms in [(900, 40), (780, 41), (720, 40), (690, 39), (660, 171), (640, 332), (600, 458), (500, 392)]
]
GONE = [CliffPoint(130 * MiB, None, "timed-out"), *(CliffPoint(mib * MiB, None, "oom-killed") for mib in (40, 30))]


def cliff(*points: CliffPoint, **options: object) -> Figure:
    return figures.cliff(points, needed_bytes=686 * MiB, predicted=(39, 332), **options)


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

PICTURES = Album(
    {
        "memory": lambda: figures.where_the_model_is([run(), LOCKED], limit_bytes=8 * GiB),
        "memory, guess": lambda: figures.where_the_model_is([run(), LOCKED], guess_gib=4),
        "memory, guess beyond": lambda: figures.where_the_model_is([run()], guess_gib=64),
        "memory, killed": lambda: figures.where_the_model_is([killed(), killed(measured=None, samples=()), REFUSED]),
        "memory, 100 times": lambda: figures.where_the_model_is(
            [killed(), HUGE, run()], labels=["135M", LONG, "7B"], limit_bytes=2 * GiB
        ),
        "memory, limit far": lambda: figures.where_the_model_is([run()], limit_bytes=900 * GiB),
        "strip": lambda: figures.residency_strip([0, 1, 0.5], [0, 0, 0], file_bytes=100 * MiB, tensors=tensors(30)),
        "strip, many layers": lambda: figures.residency_strip([1, 0], file_bytes=300 * MiB, tensors=tensors(120)),
        "strip, unreadable": lambda: figures.residency_strip(None, [1.0]),
        "layers": lambda: figures.layer_faults(steps(*[70.0] * 30), compare=steps(*[2.0] * 30)),
        "layers, one slow": lambda: figures.layer_faults(
            steps(1, 1, 1, 4000),
            compare=steps(1, 1, 1, 1),
            labels=("first, with readahead off", "second, with readahead on"),
        ),
        "layers, none": lambda: figures.layer_faults([]),
        "cliff": lambda: cliff(*SWEEP),
        "cliff, killed": lambda: cliff(*SWEEP, *GONE, floor_bytes=42 * MiB, guess=(90, 120)),
        "cliff, guess beyond": lambda: cliff(*SWEEP, guess=(500, 1e6)),
        "cliff, all killed": lambda: cliff(*GONE),
        "cliff, 100 times": lambda: cliff(*SWEEP, CliffPoint(400 * MiB, (900.0, 45000.0))),
        "timeline": lambda: figures.timeline(run(cap_bytes=14 * GiB)),
        "timeline, guess": lambda: figures.timeline(run(), guess_growth_mib=500),
        "timeline, guess beyond": lambda: figures.timeline(run(), guess_growth_mib=50000),
        "timeline, killed": lambda: figures.timeline(killed(), guess_growth_mib=5),
        "timeline, short phases": lambda: figures.timeline(
            run(phases=tuple(replace(p, start_s=3.9 + n / 50, end_s=3.91 + n / 50) for n, p in enumerate(run().phases)))
        ),
        "timeline, one sample": lambda: figures.timeline(killed(samples=killed().samples[:1], phases=())),
        "timeline, none": lambda: figures.timeline(REFUSED, title="Not measured here: recorded on another machine"),
    }
)


@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_inside_the_picture_and_clear_of_the_others(name: str) -> None:
    assert_well_made(PICTURES[name])


# where_the_model_is


def test_bars_are_as_long_as_the_memory_in_gib() -> None:
    fig = figures.where_the_model_is([run()])
    found = {label: bar for label, (bar,) in bars(fig).items()}
    assert found["measured file"].get_width() == pytest.approx(3912 / 1024)
    assert found["measured repack"].get_width() == pytest.approx(2943 / 1024)
    assert found["measured repack"].get_x() == pytest.approx(3912 / 1024)
    assert found["predicted kv"].get_width() == pytest.approx(256 / 1024)
    assert "resident memory, GiB" in words(fig)


def test_predicted_is_hatched_and_measured_is_solid_in_the_colour_of_the_kind() -> None:
    for label, (bar,) in bars(figures.where_the_model_is([run()])).items():
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
    assert numbers(figures.where_the_model_is([run(), LOCKED])) == ["3.80 GiB", "7.01 GiB"]


def test_locked_memory_has_a_dark_edge_as_long_as_it_is() -> None:
    edges = patches(figures.where_the_model_is([LOCKED]), "locked")
    assert [edge.get_width() for edge in edges] == pytest.approx([3890 / 1024] * 2)
    assert not patches(figures.where_the_model_is([run()]), "locked")


def test_limit_is_a_dotted_vermilion_line_with_its_figure() -> None:
    limit = line(PICTURES["memory"], "_limit")
    assert to_hex(limit.get_color()).upper() == LIMIT
    assert limit.get_linestyle() == ":"
    assert list(limit.get_xdata()) == [8, 8]
    assert "limit 8.00 GiB" in words(PICTURES["memory"])
    assert "limit 900 GiB, beyond this axis" in words(PICTURES["memory, limit far"])
    assert not lines(PICTURES["memory, limit far"], "_limit")


def test_a_killed_run_says_so_at_its_cap() -> None:
    fig = figures.where_the_model_is([killed()])
    assert "killed for memory at 600 MiB" in words(fig) and "(cap 600 MiB)" in words(fig)
    assert numbers(fig)[1:] == ["1", "1"], "one of one run"
    assert line(fig, "_killed").get_xdata()[0] == 600 == line(fig, "_cap").get_xdata()[0]


def test_a_refused_run_gives_its_reason_and_no_measured_bar() -> None:
    fig = figures.where_the_model_is([REFUSED])
    assert "refused: no cap is possible here" in words(fig)
    assert not any(label.startswith("measured") for label in bars(fig))


def test_labels_must_match_the_runs() -> None:
    with pytest.raises(ValueError, match="2 labels for 1 rows"):
        figures.where_the_model_is([run()], labels=["a", "b"])


def test_a_guess_of_all_memory_is_drawn_at_the_first_run() -> None:
    assert guess(PICTURES["memory, guess"]) == (4, 0)
    assert "7.00 GiB predicted; you predicted 4.00 GiB" in said(PICTURES["memory, guess"])
    assert "you predicted 64.0 GiB, beyond this axis" in said(PICTURES["memory, guess beyond"])
    assert_no_guess_draws_nothing(lambda typed: figures.where_the_model_is([run()], guess_gib=typed))


# cliff


def test_cliff_runs_from_large_caps_to_small_ones_in_percent_of_the_need() -> None:
    fig = PICTURES["cliff"]
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
    assert "cap = all it needs, 686 MiB" in text and "458 ms" in text
    assert "measured, median of 3 (whiskers: min to max)" in text
    # 600 of 686 MiB, where the median is largest: 458 ms, beside the 40 ms that the median run takes when all fits
    assert numbers(fig) == ["87 %", "11 times"]


def test_cliff_whiskers_reach_from_the_lowest_to_the_highest() -> None:
    fig = cliff(CliffPoint(GiB, (30.0, 40.0, 70.0)))
    (whisker,) = (line for line in fig.axes[0].collections if len(line.get_segments()) == 1)
    assert whisker.get_segments()[0][:, 1] == pytest.approx([30.0, 70.0])


def test_cliff_marks_runs_that_gave_no_figure() -> None:
    fig = PICTURES["cliff, killed"]
    crosses = [line for line in fig.axes[0].lines if line.get_marker() == "X"]
    assert [list(line.get_xdata()) for line in crosses] == [
        [pytest.approx(100 * 130 / 686)],
        [pytest.approx(100 * 40 / 686), pytest.approx(100 * 30 / 686)],
    ]
    text = words(fig)
    assert "killed" in text
    assert "timed-out" in text
    assert "cap = its anonymous memory, 42.0 MiB" in text


def test_cliff_counts_a_run_that_was_killed_after_some_tokens_as_killed() -> None:
    fig = cliff(CliffPoint(GiB, (40.0, 41.0), "oom-killed"))
    assert [line.get_marker() for line in fig.axes[0].lines if line.get_marker() in "oX"] == ["X"]
    assert not numbers(fig), "nothing was measured"


def test_a_guess_of_the_cliff_is_a_cap_and_a_time() -> None:
    assert guess(PICTURES["cliff, killed"]) == (90, 120)
    assert "you predicted 120 ms at 90 %" in words(PICTURES["cliff, killed"])
    assert PICTURES["cliff, guess beyond"].axes[0].get_ylim()[1] < 2000, "a far guess does not squeeze what is measured"
    assert "beyond this axis" in words(PICTURES["cliff, guess beyond"])
    assert_no_guess_draws_nothing(lambda typed: cliff(*SWEEP, guess=typed))
    assert not lines(cliff(*SWEEP, guess=(90, None)), "_guess")


# timeline


def test_timeline_stacks_file_on_anonymous() -> None:
    fig = figures.timeline(run())
    ax = fig.axes[0]
    anonymous, mapped = ax.collections[:2]
    assert anonymous.get_paths()[0].vertices[:, 1].max() == pytest.approx(40 * 80 / 1024)
    assert mapped.get_paths()[0].vertices[:, 1].max() == pytest.approx((40 * 80 + 3912) / 1024)
    assert to_hex(mapped.get_facecolor()[0]).upper() == KINDS["file"].colour
    assert numbers(fig)[-1] == "6.95 GiB"
    for name in ("start", "load", "context", "decode"):
        assert name in words(fig)


def test_timeline_shows_the_cap_and_where_the_run_was_killed() -> None:
    text = words(PICTURES["timeline, killed"])
    assert "cap 600 MiB" in text
    assert "killed after 4.00 s, last seen at 582 MiB" in text
    assert set(line(PICTURES["timeline, killed"], "_limit").get_ydata()) == {600}
    assert "cap 14.0 GiB, above this axis" in words(PICTURES["timeline"]) and not lines(PICTURES["timeline"], "_limit")


def test_a_guess_of_the_growth_starts_from_what_was_there_before_decoding() -> None:
    before, last = run().phases[-2:]
    fig = PICTURES["timeline, guess"]
    assert last.name == "decode" and guess(fig) == (last.end_s, pytest.approx(before.rss_anon_bytes / GiB + 500 / 1024))
    assert "you predicted 500 MiB more" in said(fig)
    assert "beyond this axis" in said(PICTURES["timeline, guess beyond"])
    assert not lines(PICTURES["timeline, killed"], "_guess"), "it was killed before it decoded"
    assert_no_guess_draws_nothing(lambda typed: figures.timeline(run(), guess_growth_mib=typed))


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
    fig = figures.residency_strip(pages, np.zeros(1000), file_bytes=1000 * 4096, tensors=tensors(2)[:1])
    assert numbers(fig) == ["37 %", "0 %"]
    assert "page cache\n37 %, 1.45 MiB" in words(fig)
    assert "token_embd" in words(fig)


def test_strip_shows_a_single_page_of_many() -> None:
    pages = np.zeros(1_000_000)
    pages[777_777] = 1
    fig = figures.residency_strip(pages)
    shades = fig.axes[0].images[0].get_array()
    assert (shades > 0).sum() == 1
    assert shades.max() > 0.3
    assert "under 1 %" in words(fig).lower()


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
    assert numbers(fig) == ["60.0 ms", "3.00 ms"]
    assert "cold: 1.00 MiB; warm: 1.00 MiB" in words(fig)
