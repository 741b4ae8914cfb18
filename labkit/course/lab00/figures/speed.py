"""How fast a model should decode, and how fast it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from labkit.course.figurekit import guesses, point_labels, style, text_layout
from labkit.course.figurekit.line_labels import MARKS
from labkit.course.figurekit.style import INK, MEASURED
from labkit.units import GiB, fmt_bytes, fmt_ms


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
    guess_ms: Mapping[str, float | None] | None = None,
    axis_ms: Mapping[str, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Milliseconds per token of each model: roofline (hatched), with overhead (outlined), measured (solid).

    Every model has an axis of its own: a big one and a small one differ a hundredfold, and what counts is how far each
    is from its own roofline.

    Args:
        rows: one panel each, from the top.
        bandwidth_bytes_per_s: the measured bandwidth behind ``roofline_ms``.
        guess_ms: the learner's own prediction of the time per token, by row label.
        axis_ms: where the axis of each model ends, by row label, for pictures to be compared; a bar that is longer ends
            there. Without it, the axis fits the bars.
        title: replaces the sentence computed from the rows.
    """
    bandwidth = f"{fmt_bytes(bandwidth_bytes_per_s)}/s"
    fig = style.new_figure(0.75 + 1.25 * len(rows), title=title or _title(rows))
    panels = fig.subplots(max(len(rows), 1), 1, squeeze=False)[:, 0]
    said: dict[Axes, list[Text]] = {}
    for ax, row in zip(panels, rows, strict=False):
        own = guesses.number((guess_ms or {}).get(row.label))
        texts = _panel(ax, row, bandwidth, own)
        longest = max(ms for ms in (row.roofline_ms, row.predicted_ms, row.measured_ms) if ms is not None)
        ax.set_xlim(0, max(longest, guesses.within(own, longest)) * 1.03 or 1)
        if own is not None:
            texts.append(_draw_guess(ax, own))
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


def _panel(ax: Axes, row: SpeedRow, bandwidth: str, own: float | None) -> list[Text]:
    """Draw one model's bars; return their texts."""
    said = f"bytes / bandwidth of {bandwidth}: {fmt_ms(row.roofline_ms)}"
    texts = [_bar(ax, 0, row.roofline_ms, said, style.hatched(MEASURED))]
    if row.predicted_ms is not None:
        outlined = {"facecolor": "white", "edgecolor": MEASURED, "linestyle": "--", "linewidth": 1.4}
        texts.append(_bar(ax, 1, row.predicted_ms, f"with overhead: {fmt_ms(row.predicted_ms)}", outlined))
    last = len(texts)
    if row.measured_ms is None:
        texts.append(text_layout.beside(ax, 0, last, "not measured"))
    else:
        text = f"measured: {fmt_ms(row.measured_ms)}, {text_layout.rate(row.measured_ms)}"
        texts.append(_bar(ax, last, row.measured_ms, text, style.solid(MEASURED)))
    ax.set_ylim(last + (1.5 if own is not None else 0.5), -0.5)
    name = f"{text_layout.wrap(row.label, 20)}\n{fmt_bytes(row.bytes_per_token)} a token"
    ax.set_yticks([last / 2], [name])
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=6)
    return texts


def _bar(ax: Axes, y: float, ms: float, text: str, look: Mapping[str, object]) -> Text:
    """Draw one bar; return its text."""
    ax.barh(y, ms, 0.74, **look)  # type: ignore[arg-type]
    return text_layout.beside(ax, ms, y, text)


def _draw_guess(ax: Axes, ms: float) -> Text:
    """Draw the learner's own figure on the lane below the bars; return its text."""
    x, y, said = guesses.draw(ax, ms, ax.get_ylim()[0] - 0.5, f"{fmt_ms(ms)}, {text_layout.rate(ms)}")
    if x == ms:
        return text_layout.beside(ax, x, y, said, gap=9)
    return text_layout.beside(ax, 1, y, f"{said} →", gap=-9, xycoords=ax.get_yaxis_transform())


def _share(row: SpeedRow) -> float | None:
    """The roofline's share of the measured time; None if not measured."""
    return row.roofline_ms / row.measured_ms if row.measured_ms else None


def _title(rows: Sequence[SpeedRow]) -> str:
    """How near to its roofline the nearest and the farthest model is, as a sentence."""
    shares = sorted((share, row.label) for row in rows if (share := _share(row)) is not None)
    if not shares:
        return "No model here was measured, so none can be compared with its roofline"
    said = [
        f"{text_layout.shorten(label, 36)} reaches {text_layout.percent(share)} of its roofline"
        for share, label in shares
    ]
    return said[0] if len(said) == 1 else f"{said[-1]}, {said[0].replace(' of its roofline', '')}"


@style.styled
def roofline(points: Sequence[SpeedRow], bandwidth_bytes_per_s: float) -> Figure:
    """Measured ms per token against bytes per token, both logarithmic, above the line bytes / bandwidth.

    Labels carry the share of the roofline.

    Args:
        points: the models; one that was not measured is left out.
        bandwidth_bytes_per_s: of the memory, measured or supposed; it sets the line and the shares.
    """
    # The line and the shares must agree, also when the bandwidth is not the one the rows were made with.
    points = [replace(p, roofline_ms=p.bytes_per_token / bandwidth_bytes_per_s * 1000) for p in points]
    fig = style.new_figure(4.6, title=_title(points))
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
    below = f"faster than bytes / bandwidth\n(at {fmt_bytes(bandwidth_bytes_per_s)}/s)"
    ax.text(0.98, 0.04, below, transform=ax.transAxes, ha="right", va="bottom", fontsize=9)
    for axis, name in ((ax.xaxis, "bytes read per token, GiB (log)"), (ax.yaxis, "ms per token (log)")):
        axis.set_label_text(name)
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter("")
    marks = []
    for n, (p, ms, size) in enumerate(measured):
        ax.plot(size, ms, MARKS[n % len(MARKS)], color=MEASURED, markeredgecolor="white", markersize=9)
        share = text_layout.percent(p.roofline_ms / ms)
        marks.append(point_labels.Mark(size, ms, f"{text_layout.shorten(p.label, 32)}\n{fmt_ms(ms)}, {share}", 9))
    fig.draw_without_rendering()
    point_labels.label(ax, marks, lines=point_labels.along(ax, line_x, line_y))
    return fig
