"""How fast a model should decode, and how fast it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import GUESS, INK, MEASURED
from labkit.units import GiB, fmt_bytes, fmt_ms

_MARKS = "osv^PpX<>H"


@dataclass(frozen=True)
class SpeedRow:
    """One model's speed: what the bandwidth alone would allow, what is predicted, what was measured.

    Attributes:
        label: the model's name.
        bytes_per_token: bytes that decoding one token reads.
        roofline_ms: those bytes divided by the bandwidth of the memory.
        predicted_ms: the roofline plus the measured overhead; None without such a prediction.
        measured_ms: median ms per token; None if not measured.
    """

    label: str
    bytes_per_token: int
    roofline_ms: float
    predicted_ms: float | None = None
    measured_ms: float | None = None


@style.styled
def speed_check(
    rows: Sequence[SpeedRow],
    *,
    bandwidth_bytes_per_s: float,
    guess: Mapping[str, float] | None = None,
    axis_ms: Mapping[str, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Milliseconds per token of each model: roofline (hatched), with overhead (outlined), measured (solid).

    Every model has an axis of its own: a big one and a small one differ a hundredfold, and what counts is how far each
    is from its own roofline.

    Args:
        rows: one panel each, from the top.
        bandwidth_bytes_per_s: the measured bandwidth behind ``roofline_ms``.
        guess: the learner's own prediction in ms per token, by row label.
        axis_ms: where the axis of each model ends, by row label, for pictures to be compared; a bar that is longer ends
            there. Without it, the axis fits the bars.
        title: replaces the sentence computed from the rows.
    """
    bandwidth = f"{fmt_bytes(bandwidth_bytes_per_s)}/s"
    fig = style.new_figure(0.75 + 1.25 * len(rows), title=title or _title(rows))
    panels = fig.subplots(max(len(rows), 1), 1, squeeze=False)[:, 0]
    said: dict[Axes, list[Text]] = {}
    for ax, row in zip(panels, rows, strict=False):
        own = (guess or {}).get(row.label)
        texts = _panel(ax, row, bandwidth, own)
        longest = max(ms for ms in (row.roofline_ms, row.predicted_ms, row.measured_ms) if ms is not None)
        shown = own is not None and own <= 3 * longest
        ax.set_xlim(0, max(longest, own if own is not None and shown else 0) * 1.03 or 1)
        if own is not None:
            texts += [_diamond(ax, own, shown=shown)]
        said[ax] = texts
        if axis_ms is not None:
            ax.set_xlim(0, axis_ms[row.label])
            for text in texts:
                if isinstance(text, Annotation) and text.xy[0] > axis_ms[row.label]:
                    text.set_text(f"{text.get_text()}, beyond this axis →")
    if len(rows):
        panels[-1].set_xlabel("ms per token (each model has its own axis)")
    if axis_ms is None:
        text_layout.make_room(fig, said)
    else:
        text_layout.keep_inside(fig, said)
    return fig


def _panel(ax: Axes, row: SpeedRow, bandwidth: str, guess: float | None) -> list[Text]:
    texts = [
        _bar(
            ax,
            0,
            row.roofline_ms,
            f"bytes / bandwidth of {bandwidth}: {fmt_ms(row.roofline_ms)}",
            style.hatched(MEASURED),
        )
    ]
    if row.predicted_ms is not None:
        outlined = {"facecolor": "white", "edgecolor": MEASURED, "linestyle": "--", "linewidth": 1.4}
        texts.append(_bar(ax, 1, row.predicted_ms, f"with overhead: {fmt_ms(row.predicted_ms)}", outlined))
    last = len(texts)
    if row.measured_ms is None:
        texts.append(_label(ax, 0, last, "not measured"))
    else:
        text = f"measured: {fmt_ms(row.measured_ms)}, {_rate(row.measured_ms)}"
        texts.append(_bar(ax, last, row.measured_ms, text, style.solid(MEASURED)))
    ax.set_ylim(last + (1.5 if guess is not None else 0.5), -0.5)
    name = f"{text_layout.wrap(row.label, 20)}\n{fmt_bytes(row.bytes_per_token)} a token"
    ax.set_yticks([last / 2], [name])
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=6)
    return texts


def _bar(ax: Axes, y: float, ms: float, text: str, look: Mapping[str, object]) -> Text:
    ax.barh(y, ms, 0.74, **look)  # type: ignore[arg-type]
    return _label(ax, ms, y, text)


def _label(ax: Axes, x: float, y: float, text: str) -> Text:
    return ax.annotate(
        text, (x, y), (5, 0), textcoords="offset points", va="center", fontsize=8.5, annotation_clip=False
    )


def _diamond(ax: Axes, ms: float, *, shown: bool) -> Text:
    """The learner's own figure on the lane below the bars; at the right edge if it is far beyond them."""
    lane = ax.get_ylim()[0] - 0.5
    text = f"you predicted {fmt_ms(ms)}, {_rate(ms)}"
    if shown:
        ax.plot(ms, lane, "D", color=GUESS, markersize=7)
        return ax.annotate(text, (ms, lane), (9, 0), textcoords="offset points", va="center", fontsize=8.5)
    edge = ax.get_yaxis_transform()
    ax.plot(0.985, lane, "D", color=GUESS, markersize=7, transform=edge)
    return ax.annotate(
        f"{text}, beyond this axis →",
        (0.985, lane),
        (-9, 0),
        xycoords=edge,
        ha="right",
        va="center",
        textcoords="offset points",
        fontsize=8.5,
    )


def _rate(ms: float) -> str:
    per_s = 1000 / ms if ms > 0 else float("inf")
    return f"{per_s:.0f} tokens/s" if per_s >= 9.95 else f"{per_s:.2g} tokens/s"


def _share(row: SpeedRow) -> float | None:
    return row.roofline_ms / row.measured_ms if row.measured_ms else None


def _title(rows: Sequence[SpeedRow]) -> str:
    shares = sorted((share, row.label) for row in rows if (share := _share(row)) is not None)
    if not shares:
        return "What the memory's bandwidth allows, before anything is measured"
    said = [
        f"{text_layout.shorten(label, 36)} reaches {text_layout.percent(share)} of its roofline"
        for share, label in shares
    ]
    return said[0] if len(said) == 1 else f"{said[-1]}, {said[0].replace(' of its roofline', '')}"


@style.styled
def roofline(points: Sequence[SpeedRow], bandwidth_bytes_per_s: float, *, title: str | None = None) -> Figure:
    """Measured ms per token against bytes per token, both logarithmic, above the line bytes / bandwidth.

    Args:
        points: the models; one that was not measured is left out.
        bandwidth_bytes_per_s: of the memory, measured or supposed; it sets the line and the shares.
        title: replaces the sentence computed from the points.

    Labels carry the share of the roofline. They sit beside the points; where the points are too close together for
    that, they move into a key below.
    """
    # The line and the shares must agree, also when the bandwidth is not the one the rows were made with.
    points = [replace(p, roofline_ms=p.bytes_per_token / bandwidth_bytes_per_s * 1000) for p in points]
    fig = style.new_figure(4.6, title=title or _title(points))
    ax = fig.add_subplot()
    measured = [(p, p.measured_ms, p.bytes_per_token / GiB) for p in points if p.measured_ms]
    sizes = [size for _, _, size in measured] or [0.1, 1]
    line_x = [min(sizes) / 4, max(sizes) * 4]
    line_y = [x * GiB / bandwidth_bytes_per_s * 1000 for x in line_x]
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(*line_x)
    ax.set_ylim(line_y[0], max([line_y[1], *(ms * 1.6 for _, ms, _ in measured)]))
    ax.plot(line_x, line_y, "--", color=INK, linewidth=1.4, zorder=2)
    ax.fill_between(line_x, line_y[0] / 10, line_y, color=style.FAINT, zorder=0, linewidth=0)
    ax.text(
        0.98,
        0.04,
        f"faster than bytes / bandwidth\n(at {fmt_bytes(bandwidth_bytes_per_s)}/s)",
        transform=ax.transAxes,
        ha="right",
        va="bottom",
        fontsize=9,
    )
    for axis, name in ((ax.xaxis, "bytes read per token, GiB (log)"), (ax.yaxis, "ms per token (log)")):
        axis.set_label_text(name)
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter("")
    handles, names = [], []
    for n, (p, ms, size) in enumerate(measured):
        handles += ax.plot(size, ms, _MARKS[n % len(_MARKS)], color=MEASURED, markeredgecolor="white", markersize=9)
        names.append(f"{text_layout.shorten(p.label, 32)}: {fmt_ms(ms)}, {text_layout.percent(p.roofline_ms / ms)}")
    fig.draw_without_rendering()
    steps = [line_x[0] * (line_x[1] / line_x[0]) ** (i / 60) for i in range(61)]
    on_line = [ax.transData.transform((x, x * GiB / bandwidth_bytes_per_s * 1000)) for x in steps]
    line = [Bbox.from_extents(x - 6, y - 4, x + 6, y + 4) for x, y in on_line]
    anchors = [(at, ms, label.replace(": ", "\n")) for (_, ms, at), label in zip(measured, names, strict=True)]
    if not text_layout.place_labels(ax, anchors, clear_of=line):
        text_layout.legend_below(fig, handles, names, ncols=2)
    return fig
