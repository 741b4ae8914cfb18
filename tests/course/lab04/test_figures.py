"""Pictures of lab 04: figures in them equal the input, no text is lost or covered, and grey tells enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from matplotlib.colors import to_hex
from support.lab04 import POINTS, STAYS, STEPS, TOUCHED, failed, header, point, ran, split
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
    title,
    words,
)

from labkit import predict
from labkit.course import figures
from labkit.course.figurekit.style import LIMIT
from labkit.course.figures import CrossingRow, DeviceCurve
from labkit.planning.device_curves import crossing_rows, device_curves, usable_bytes
from labkit.planning.planner import plan
from labkit.planning.tuner import Tuned, experts_regex, tune
from labkit.predict import Split, hardware
from labkit.predict.offload_speed import speeds_of
from labkit.settings import Settings
from labkit.units import GiB, MiB, fmt_bytes

pytestmark = pytest.mark.filterwarnings("error")

FAILED = [
    *POINTS[:2],
    point(16, failed(16)),
    point(17, failed(17, "device-lost", device=None)),
    point(8, failed(8, "oom-killed", measured=None, device=None)),
]
MOE = "qwen3-30b-a3b"
THIRTEEN = "llama-2-13b"
CURVES = [
    DeviceCurve("a large card", {n: 150 - 3.5 * n for n in range(42)}, 40, 24 * GiB),
    DeviceCurve("a small card", {n: 150 - 3 * n for n in range(28)}, 40, 7 * GiB),
    DeviceCurve("one memory for both", {n: 77.0 for n in range(42)}, 40, 11 * GiB),
    DeviceCurve(LONG[:40], {}, 40, GiB),
]
CROSS = [
    CrossingRow("each layer", 5.0, "claimed"),
    CrossingRow("a crossing", 0.02, "predicted", 20 * 1024),
    CrossingRow("a crossing here", 0.11, "measured", 20 * 1024),
]


def search(vram: str, shape: str = THIRTEEN, *, experts: bool = False, margin: str = "1GiB") -> Tuned:
    return tune(header(shape), vram=vram, settings=Settings(n_ctx=4096), experts_on_cpu=experts, margin=margin)


@cache
def every(shape: str, experts: bool = False) -> dict[int, Split]:
    n = header(shape).n_layer
    if experts:
        return {i: split(n + 1, shape, on_cpu=experts_regex(i), n_ctx=4096) for i in range(n + 1)}
    return {i: split(i, shape, n_ctx=4096) for i in range(n + 2)}


PICTURES = Album(
    {
        "map": lambda: figures.layer_map([split(n) for n in STEPS], header()),
        "map, one": lambda: figures.layer_map(split(4), header()),
        "map, none": lambda: figures.layer_map(split(0), header()),
        "map, output": lambda: figures.layer_map(split(1), header()),
        "map, 13B": lambda: figures.layer_map([split(n, THIRTEEN) for n in (0, 20, 41)], header(THIRTEEN)),
        "map, experts": lambda: figures.layer_map(
            [split(49, MOE, on_cpu=experts_regex(20)), split(49, MOE, offload_kqv=False)],
            header(MOE),
            on_cpu=[experts_regex(20), ()],
            labels=["-ncmoe 20", "cache stays"],
        ),
        "map, 80": lambda: figures.layer_map(split(40, "llama-2-70b"), header("llama-2-70b")),
        "map, two devices": lambda: figures.layer_map(split(8, n_devices=2), header()),
        "plan": lambda: figures.offload_plan(
            split(35, THIRTEEN, n_ctx=4096),
            header(THIRTEEN),
            vram_bytes=10 * GiB,
            ram_bytes=16 * GiB,
            top_bytes=12 * GiB,
        ),
        "plan, too much": lambda: figures.offload_plan(split(17), header(), vram_bytes=512 * MiB, ram_bytes=100 * MiB),
        "plan, nothing": lambda: figures.offload_plan(split(0), header(), vram_bytes=24 * GiB),
        "plan, beyond": lambda: figures.offload_plan(
            split(41, THIRTEEN), header(THIRTEEN), vram_bytes=6 * GiB, top_bytes=4 * GiB
        ),
        "plan, experts": lambda: figures.offload_plan(
            split(49, MOE, on_cpu=experts_regex(30)), header(MOE), vram_bytes=12 * GiB, on_cpu=experts_regex(30)
        ),
        "processes": lambda: figures.two_processes(POINTS),
        "processes, cache stays": lambda: figures.two_processes([*POINTS, *STAYS]),
        "processes, one": lambda: figures.two_processes(POINTS[2:3]),
        "processes, all": lambda: figures.two_processes([point(n, ran(n)) for n in range(18)]),
        "processes, failed": lambda: figures.two_processes(FAILED),
        "processes, none": lambda: figures.two_processes([point(3)]),
        "speed": lambda: figures.offload_speed([*POINTS, *STAYS], guess_times=0.4),
        "speed, lines": lambda: figures.offload_speed(
            POINTS,
            predicted={True: {n: 61.0 - n for n in range(18)}, False: {n: 61.0 + n for n in range(18)}},
            top_ms=100,
        ),
        "speed, disturbed": lambda: figures.offload_speed([point(n, ran(n, ms=[30, 31, 900])) for n in (0, 8, 16, 17)]),
        "speed, guess beyond": lambda: figures.offload_speed(POINTS, guess_times=1000, top_ms=100),
        "speed, one": lambda: figures.offload_speed(POINTS[:1]),
        "speed, failed": lambda: figures.offload_speed(FAILED),
        "speed, none": lambda: figures.offload_speed([]),
        "what if": lambda: figures.what_if_devices(CURVES),
        "what if, fixed": lambda: figures.what_if_devices(CURVES[:1], top_ms=400),
        "what if, same end": lambda: figures.what_if_devices([replace(CURVES[1], label=f"card {n}") for n in range(4)]),
        "what if, no room": lambda: figures.what_if_devices(CURVES[3:]),
        "what if, none": lambda: figures.what_if_devices([]),
        "tuner": lambda: figures.tuner_search(
            search("10GiB"), vram_bytes=10 * GiB, margin_bytes=GiB, splits=every(THIRTEEN), guess_layers=30
        ),
        "tuner, plain": lambda: figures.tuner_search(search("10GiB"), vram_bytes=10 * GiB, margin_bytes=GiB),
        "tuner, everything": lambda: figures.tuner_search(
            search("80GiB"), vram_bytes=80 * GiB, margin_bytes=GiB, splits=every(THIRTEEN), top_bytes=16 * GiB
        ),
        "tuner, nothing": lambda: figures.tuner_search(
            search("200MiB", margin="0"), vram_bytes=200 * MiB, splits=every(THIRTEEN), guess_layers=99
        ),
        "tuner, experts": lambda: figures.tuner_search(
            search("8GiB", MOE, experts=True), vram_bytes=8 * GiB, margin_bytes=GiB, splits=every(MOE, True)
        ),
        "tuner, no experts fit": lambda: figures.tuner_search(
            search("1.5GiB", MOE, experts=True), vram_bytes=3 * GiB // 2, margin_bytes=GiB
        ),
        "tuner, all experts fit": lambda: figures.tuner_search(search("48GiB", MOE, experts=True), vram_bytes=48 * GiB),
        "crossing": lambda: figures.crossing(CROSS),
        "crossing, built": lambda: figures.crossing(
            crossing_rows(header(THIRTEEN), split(20, THIRTEEN), link_bytes_per_s=31.5e9, measured_crossing_ms=0.1)
        ),
        "crossing, far": lambda: figures.crossing(
            [CrossingRow(LONG, 0.0), CrossingRow("long", 2e6, "claimed", 1 << 50)]
        ),
        "crossing, none": lambda: figures.crossing([]),
    }
)


@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_inside_the_picture_and_clear_of_the_others(name: str) -> None:
    assert_well_made(PICTURES[name])


@pytest.mark.parametrize(
    "name", ["map", "plan", "processes, cache stays", "speed", "what if", "tuner", "crossing, built"]
)
def test_pictures_stay_small(name: str) -> None:
    assert len(figures.png(PICTURES[name])) < 40_000


# layer_map


def rows_of(found: Sequence, n_rows: int) -> list[int]:
    """How many patches lie in each row."""
    return [sum(n <= patch.get_y() < n + 1 for patch in found) for n in range(n_rows)]


def test_layers_leave_from_the_end_and_the_embedding_stays() -> None:
    fig = PICTURES["map"]
    host, device = patches(fig, "host"), patches(fig, "device")
    # 18 columns: the embedding, 16 blocks, the output, which while tied to the embedding is an empty frame
    assert rows_of(device, 6) == list(STEPS)
    assert rows_of(host, 6) == [17 - max(n - 1, 0) for n in STEPS]
    assert rows_of(patches(fig, "tied"), 6) == [1, 0, 0, 0, 0, 0]
    for n, steps in enumerate(STEPS):
        in_row = [patch for patch in device if n <= patch.get_y() < n + 1]
        stay = [patch for patch in host if n <= patch.get_y() < n + 1]
        if steps:
            first_gone = min(patch.get_x() for patch in in_row)
            assert all(patch.get_x() < first_gone for patch in stay), "what stays is at the start"
            assert all(patch.get_y() > n + 0.4 for patch in in_row), "in the lower lane"
    assert len(patches(fig, "_edge")) == len(device), "a device's have dotted edges"


def test_widths_are_bytes_and_the_texts_say_them() -> None:
    fig = PICTURES["map, one"]
    sizes = sorted(patch.get_width() for patch in [*patches(fig, "host"), *patches(fig, "device")])
    embedding = header().tensor("token_embd.weight").nbytes
    assert sizes[-2] == pytest.approx(embedding, abs=1024)
    assert sum(sizes) - embedding == pytest.approx(header().tensor_bytes, rel=1e-6), "the output's copy comes on top"
    text = said(fig)
    at = split(4)
    assert f"host {fmt_bytes(at.host.weights_bytes)}" in text
    assert f"device {fmt_bytes(at.devices[0].weights_bytes)}" in text
    assert "2 devices 452 MiB" in said(PICTURES["map, two devices"])
    assert numbers(fig) == ["4", "13", "15"], "n_gpu_layers, the first and the last block that moves"


@pytest.mark.parametrize(
    ("n", "moved", "blocks"),
    [(0, "", []), (1, "output layer", []), (2, "output layer", ["15"]), (17, "every block", [])],
)
def test_the_title_says_what_is_on_the_device(n: int, moved: str, blocks: list[str]) -> None:
    fig = figures.layer_map(split(n), header())
    assert moved in title(fig) and numbers(fig) == [str(n), *blocks]


def test_a_cache_lies_where_its_layer_is_unless_it_is_kept() -> None:
    for kqv, above in ((True, 9), (False, 16)):
        strips = patches(figures.layer_map(split(8, offload_kqv=kqv), header()), "kv")
        assert len(strips) == 16 and sum(strip.get_y() < 0.47 for strip in strips) == above


def test_experts_that_stay_are_marked() -> None:
    fig = PICTURES["map, experts"]
    assert rows_of(patches(fig, "experts kept"), 2) == [20, 0]
    assert len(lines(fig, "_kept")) == 20
    assert rows_of(patches(fig, "device"), 2) == [49, 49]
    assert "experts that stay on the host" in said(fig)
    one = figures.layer_map(split(49, MOE, on_cpu=experts_regex(20)), header(MOE), on_cpu=[experts_regex(20)])
    assert numbers(one) == ["49", "20"]


def test_labels_and_patterns_come_one_per_row() -> None:
    with pytest.raises(ValueError, match="one label per row"):
        figures.layer_map([split(0), split(1)], header(), labels=["a"])
    with pytest.raises(ValueError, match="one per row"):
        figures.layer_map([split(0), split(1)], header(), on_cpu=[()])


# offload_plan


def test_the_plan_says_what_is_missing_on_each_side() -> None:
    at = split(17)
    fig = PICTURES["plan, too much"]
    text = said(fig)
    device = at.devices[0].total_bytes
    assert f"device {fmt_bytes(device)}" in text and f"host {fmt_bytes(at.host.total_bytes)}" in text
    assert f"device's memory 512 MiB: {fmt_bytes(device - 512 * MiB)} too little" in text
    assert f"RAM 100 MiB: {fmt_bytes(at.host.total_bytes - 100 * MiB)} too little" in text
    assert numbers(fig) == ["17", "512 MiB"] and "does not fit" in title(fig)
    assert [limit.get_xdata()[0] for limit in lines(fig, "_limit", 1)] == pytest.approx([100 / 1024, 0.5])


def test_bars_of_the_plan_are_the_split_and_hatched() -> None:
    at = split(35, THIRTEEN, n_ctx=4096)
    fig = PICTURES["plan"]
    drawn = {label: bar for label, (bar, *_) in bars(fig, 1).items() if label != "_edge"}
    assert all(bar.get_hatch() for bar in drawn.values())
    assert len(bars(fig, 1)["_edge"]) == sum(label.startswith("device") for label in drawn)
    found = {label: bar.get_width() * GiB for label, bar in drawn.items()}
    side = at.devices[0]
    assert found["device heap"] == pytest.approx(side.weights_bytes)
    assert found["device kv"] == pytest.approx(side.kv_bytes)
    assert found["host file"] == pytest.approx(at.host.mapped_bytes)
    assert sum(v for k, v in found.items() if k.startswith("device")) == pytest.approx(side.total_bytes)
    assert fig.axes[1].get_xlim() == (0, 12) and "RAM 16.0 GiB, beyond this axis" in said(fig)
    assert numbers(fig) == ["35", "6", "39", "10.0 GiB"] and "not" not in title(fig)


# two_processes


def test_both_processes_are_predicted_hatched_and_measured_solid() -> None:
    fig = PICTURES["processes"]
    unit = GiB
    for axes, name in ((0, "host"), (1, "device")):
        sizes: dict[tuple[str, int], dict[str, float]] = {}
        for label, drawn in bars(fig, axes).items():
            how, _, kind = label.partition(" ")
            for bar in drawn if label != "_edge" else []:
                sizes.setdefault((how, round(bar.get_x() + bar.get_width() / 2)), {})[kind] = bar.get_height() * unit
                assert bool(bar.get_hatch()) is (how == "predicted")
        assert len(bars(fig, axes).get("_edge", [])) == (0 if name == "host" else sum(map(len, sizes.values())))
        for x, n in enumerate(STEPS):
            side = split(n).host if name == "host" else split(n).devices[0]
            weights = "file" if name == "host" else "heap"
            if not side.total_bytes:
                continue
            extra = predict.PYTHON_FILE_BYTES if name == "host" else 0
            size = side.mapped_bytes if name == "host" else side.weights_bytes
            assert sizes["predicted", x][weights] == pytest.approx(size + extra)
            assert sizes["measured", x].get("kv", 0) == pytest.approx(side.kv_bytes)
            assert sizes["measured", x]["compute"] == pytest.approx(TOUCHED)
        reported = lines(fig, "_reported", axes)
        assert len(reported) == (6 if name == "host" else 5)
        last = split(17).host if name == "host" else split(17).devices[0]
        assert reported[-1].get_ydata()[0] * unit == pytest.approx(last.total_bytes)
    assert [t.get_text() for t in fig.axes[1].get_xticklabels()] == [str(n) for n in STEPS]
    before, after = split(0).host.mapped_bytes + 24 * MiB, split(17).host.mapped_bytes + 24 * MiB
    assert numbers(fig)[:5] == ["0", "17", fmt_bytes(before), fmt_bytes(after), "21.0 MiB"]
    assert fig.axes[0].get_ylim() == fig.axes[1].get_ylim(), "the sides can be compared"


def test_later_points_take_the_place_of_earlier_ones_and_failures_are_named() -> None:
    fig = figures.two_processes([*POINTS, point(4, failed(4))])
    assert [t.get_text() for t in fig.axes[1].get_xticklabels()] == [str(n) for n in STEPS]
    assert len(lines(fig, "_failed", 1)) == 1 and "load failed" in said(fig)
    both = figures.two_processes([point(4, failed(4), ran(4), failed(4))])
    assert not lines(both, "_failed", 1), "of several runs the one that ended well is shown"
    text = said(PICTURES["processes, failed"])
    assert "killed" in text and "device lost" in text


# offload_speed


def test_marks_are_typical_times_and_calibrating_points_have_rings() -> None:
    fig = figures.offload_speed([*POINTS, *STAYS])
    ax = fig.axes[0]
    marks = {c.get_label(): c[0] for c in ax.containers}
    moves, stays = marks["cache moves too"], marks["cache stays on host\n(offload_kqv off)"]
    assert list(moves.get_xdata()) == list(STEPS)
    assert list(moves.get_ydata()) == [60.5 - n for n in STEPS], "the median of the faster half"
    assert list(stays.get_xdata()) == [8, 17] and moves.get_marker() != stays.get_marker()
    assert list(line(fig, "_fitted").get_xdata()) == [0, 17]
    assert list(line(fig, "predicted True").get_ydata()) == [61.0 - n for n in STEPS]
    [plus_one] = patches(fig, "_plus one")
    assert plus_one.get_x() == 16 and plus_one.get_width() == 1
    assert "from 16 to 17, block 0 moves too" in said(fig)
    # 0.5 ms of 59.5, 56.5, 52.5, 44.5 (the cache moves) and of 78, 87 (it stays): the middle one is 1 %
    assert numbers(fig) == ["60.5 ms", "0", "43.5 ms", "17", "1 %"]


def test_a_line_of_ones_own_replaces_the_points() -> None:
    fig = PICTURES["speed, lines"]
    assert list(line(fig, "predicted False").get_xdata()) == list(range(18))
    assert fig.axes[0].get_ylim() == (0, 100)


def test_a_guess_of_how_many_times_is_drawn_at_the_most_layers() -> None:
    assert guess(PICTURES["speed"]) == (17, pytest.approx(0.4 * 60.5))
    assert "you predicted 0.4 times" in said(PICTURES["speed"])
    assert guess(PICTURES["speed, guess beyond"]) == (17, 100)
    assert "beyond this axis" in said(PICTURES["speed, guess beyond"])
    assert_no_guess_draws_nothing(lambda typed: figures.offload_speed(POINTS, guess_times=typed))


def test_one_slow_token_does_not_squeeze_the_rest() -> None:
    fig = PICTURES["speed, disturbed"]
    assert fig.axes[0].get_ylim()[1] < 50
    assert words(fig).count("↑ 900") == 4


# what_if_devices


def test_lines_end_where_the_memory_does() -> None:
    fig = PICTURES["what if"]
    drawn = {line.get_label(): line for line in fig.axes[0].lines if line.get_linestyle() == "--"}
    assert list(drawn["a small card"].get_xdata()) == list(range(28))
    assert drawn["a large card"].get_ydata()[-1] == 150 - 3.5 * 41
    [full] = lines(fig, "_full")
    assert full.get_xdata()[0] == 27 and to_hex(full.get_color()).upper() == LIMIT
    assert len(lines(fig, "_whole")) == 2
    text = said(fig)
    assert "a small card, full at 27: 69.0 ms, 14 tokens/s" in text and f"no room at all: {LONG[:40]}" in text
    assert numbers(fig) == ["6.50 ms", "69.0 ms", "27", "41"] and "redicted" in title(fig)
    assert numbers(figures.what_if_devices(CURVES[1:2])) == ["69.0 ms", "27", "41"]
    assert not numbers(PICTURES["what if, no room"])
    assert CURVES[0].whole and not CURVES[1].whole and CURVES[3].most is None


def test_curves_follow_the_tuner_and_the_plan() -> None:
    settings = Settings(n_ctx=4096)
    rows = device_curves(
        header(THIRTEEN), ["rtx-4060", "rtx-4090", ("apple-m2", "16GiB"), ("apple-m2", "8GiB")],
        host_bytes_per_s=51.2e9, settings=settings,
    )  # fmt: skip
    small, large, mac, little = rows
    card = hardware.get("rtx-4060")
    assert small.most == tune(header(THIRTEEN), vram=card.gpu_bytes(), settings=settings).n_gpu_layers
    assert small.memory_bytes == usable_bytes(card) == 7 * GiB
    planned = plan(header(THIRTEEN), ram="32GiB", device=card, settings=settings, host_bytes_per_s=51.2e9)
    assert small.ms[planned.n_gpu_layers] == pytest.approx(planned.decode_ms)
    assert large.whole and large.ms[41] < 10 < small.ms[small.most] < small.ms[0]
    assert mac.whole and len(set(mac.ms.values())) < 42 and mac.ms[0] == pytest.approx(mac.ms[41], rel=0.01)
    assert mac.label == "Apple M2, 16 GiB" and large.label == "RTX 4090"
    assert not little.ms, "7.3 GiB of weights and 3.1 GiB of cache in 8 GiB of RAM"
    assert speeds_of(hardware.get("apple-m2"), host_bytes_per_s=1).host_bytes_per_s == 100e9


# tuner_search


def test_the_chosen_and_the_first_that_is_too_many_are_marked() -> None:
    tuned = search("10GiB")
    fig = PICTURES["tuner"]
    best, over = line(fig, "_chosen"), line(fig, "_first over")
    sizes = dict(tuned.tried)
    assert best.get_xdata()[0] == tuned.n_gpu_layers == 35 and over.get_xdata()[0] == 36
    assert best.get_ydata()[0] * GiB == pytest.approx(sizes[35]) and over.get_ydata()[0] * GiB == pytest.approx(
        sizes[36]
    )
    assert len(lines(fig, "_tried")) == len(tuned.tried) - 2
    assert sorted(line.get_ydata()[0] for line in lines(fig, "_limit")) == [9, 10]
    text = said(fig)
    assert f"35 fits: {fmt_bytes(sizes[35])}" in text and f"36 does not: {fmt_bytes(sizes[36])}" in text
    assert numbers(fig)[:3] == ["35", "41", "9.00 GiB"]


def test_a_guess_of_the_layers_is_drawn_on_the_axis() -> None:
    assert guess(PICTURES["tuner"]) == (30, 0)
    assert "you predicted 30" in said(PICTURES["tuner"])
    assert "you predicted 99, beyond this axis" in said(PICTURES["tuner, nothing"])
    assert_no_guess_draws_nothing(
        lambda typed: figures.tuner_search(search("10GiB"), vram_bytes=10 * GiB, guess_layers=typed)
    )


def test_areas_of_the_search_are_stacked_to_the_devices_bytes() -> None:
    fig = PICTURES["tuner"]
    top = fig.axes[0].collections[-1].get_paths()[0].vertices
    for n, each in every(THIRTEEN).items():
        assert top[top[:, 0] == n][:, 1].max() * GiB == pytest.approx(each.devices[0].total_bytes)


def test_the_search_for_experts_runs_towards_none_on_the_host() -> None:
    fig = PICTURES["tuner, experts"]
    left, right = fig.axes[0].get_xlim()
    assert left > right
    tuned = search("8GiB", MOE, experts=True)
    assert line(fig, "_chosen").get_xdata()[0] == tuned.n_cpu_moe
    assert line(fig, "_first over").get_xdata()[0] == tuned.n_cpu_moe - 1
    assert numbers(fig)[:2] == [str(tuned.n_cpu_moe), "7.00 GiB"]
    assert numbers(PICTURES["tuner, all experts fit"])[0] == "48.0 GiB"
    assert not lines(PICTURES["tuner, no experts fit"], "_chosen")


def test_a_budget_beyond_the_axis_is_said() -> None:
    fig = PICTURES["tuner, everything"]
    assert "device's memory 80.0 GiB, above this axis ↑" in said(fig) and fig.axes[0].get_ylim() == (0, 16)
    assert numbers(fig)[:2] == ["41", "41"]
    assert numbers(PICTURES["tuner, nothing"])[0] == "200 MiB"


# crossing


def test_claims_predictions_and_measurements_have_marks_of_their_own() -> None:
    fig = PICTURES["crossing"]
    claim, one, here = (line(fig, how) for how in ("claimed", "predicted", "measured"))
    assert [mark.get_xdata()[1] for mark in (claim, one, here)] == [5.0, 0.02, 0.11]
    assert claim.get_marker() == "s" and to_hex(one.get_markerfacecolor()) == "#ffffff" != to_hex(here.get_color())
    text = said(fig)
    assert "predicted: 20 µs, 20.0 KiB" in text and "claimed: 5 ms" in text
    assert numbers(fig) == ["20 µs", "5 ms", "250 times"]


def test_what_crosses_is_the_hidden_state() -> None:
    at = split(20, THIRTEEN)
    claim, one, alone, whole, weights = crossing_rows(header(THIRTEEN), at, link_bytes_per_s=31.5e9, crossing_ms=0.02)
    assert claim.ms == 5 and claim.how == "claimed"
    assert one.bytes == alone.bytes == 4 * 5120 and alone.ms == pytest.approx(20480 / 31.5e6)
    assert one.ms == pytest.approx(alone.ms + 0.02)
    moved_ms = at.crossing_bytes / 31.5e6
    assert whole.bytes == at.crossing_bytes and whole.ms == pytest.approx(moved_ms + at.crossings * 0.02)
    assert weights.bytes is not None and 180 * MiB < weights.bytes < 200 * MiB and weights.ms > claim.ms
