"""The cells of a KV cache, step by step: which sequence each belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.course.figurekit import style, text_layout
from labkit.course.figurekit.style import INK, KINDS, LIMIT
from labkit.course.lab03.cachesim.bookkeeping import RESERVED
from labkit.engine.internals.slot_maps import EMPTY, SHARED

_SHADES = (KINDS["kv"].colour, "#9ADBC6", "#00402F", "#4FBF9C", "#CDEFE4", "#007354")
_BAR = 0.66


class Map(Protocol):
    """The cells after one step: what ``slot_map`` and the simulators give.

    Besides these, ``status`` (llama_decode's: 1 means no slot) or ``admitted`` says whether the step had room, and
    ``n_streams`` how many caches of equal size the cells belong to.
    """

    @property
    def step(self) -> Any: ...
    @property
    def cells(self) -> Any: ...  # integers: an array or a sequence
    @property
    def used(self) -> int: ...


@style.styled
def slot_map(
    snapshots: Sequence[Map],
    *,
    selected: int | None = None,
) -> Figure:
    """A strip of cells after each step, from the top: a shade and a number for each sequence, empty cells white.

    Args:
        snapshots: one for each step.
        selected: the last step to show; later ones keep their row but stay blank, so that the picture does not jump.
    """
    shown = len(snapshots) if selected is None else min(max(selected, 0) + 1, len(snapshots))
    title = _title(snapshots if selected is None else snapshots[shown - 1 : shown])
    n_cells = max((len(snapshot.cells) for snapshot in snapshots), default=1)
    fig = style.new_figure(1.35 + 0.36 * max(len(snapshots), 1), title=title)
    ax = fig.add_subplot()
    ax.set_xlim(0, n_cells)
    ax.set_ylim(max(len(snapshots), 1) - 0.5, -0.5)
    names = []
    kinds: set[int] = set()
    for y, snapshot in enumerate(snapshots):
        refused = y < shown and not has_room(snapshot)
        names.append(step_text(snapshot.step) + (f"\n{_refusal(snapshot)}" if refused else ""))
        kinds |= {int(cell) for cell in snapshot.cells}
        if y < shown:
            _strip(ax, y, snapshot, marked=y == selected)
            text_layout.beside(ax, n_cells, y, f"{snapshot.used} of {len(snapshot.cells)}", bbox=None)
    ax.set_yticks(range(len(names)), names, fontsize=8.5)
    for tick, name, y in zip(ax.get_yticklabels(), names, range(len(names)), strict=True):
        tick.set_color(LIMIT if "\n" in name else INK if y < shown else "#767676")
        tick.set_fontweight("bold" if y == selected else "normal")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    step = max(n_cells // 8, 1)
    ax.set_xticks(range(0, n_cells + 1, step))
    ax.set_xlabel("cell of the cache; at the right: cells in use")
    handles = _handles(kinds)
    if handles:
        text_layout.legend_below(fig, list(handles.values()), list(handles), ncols=4)
    _name_runs(fig, ax, snapshots[:shown])
    return fig


def _handles(kinds: set[int]) -> dict[str, Patch]:
    """The legend's patches by name, for the kinds of cells that are drawn."""
    sequences = sorted(kind for kind in kinds if kind >= 0)
    found = {f"sequence {n}": Patch(**style.solid(_shade(n))) for n in sequences[:6]}
    if SHARED in kinds:
        found["shared by several"] = Patch(**_look(SHARED))
    if RESERVED in kinds:
        found["reserved, unused"] = Patch(**_look(RESERVED))
    if EMPTY in kinds:
        found["empty"] = Patch(facecolor="white", edgecolor=INK, linewidth=0.7)
    return found


def _shade(sequence: int) -> str:
    """The colour of a sequence."""
    return _SHADES[sequence % len(_SHADES)]


def _look(kind: int) -> dict[str, Any]:
    """Patch settings of a kind of cell."""
    if kind == SHARED:
        return {**style.hatched(KINDS["kv"].colour, "xxxx"), "linewidth": 0.6}
    if kind == RESERVED:
        return {"facecolor": "white", "edgecolor": "#767676", "hatch": "....", "linewidth": 0.6}
    return style.solid(_shade(kind))


def runs(cells: Any) -> Iterator[tuple[int, int, int]]:
    """Kind, first cell and length of each run of equal cells."""
    start = 0
    for n in range(1, len(cells) + 1):
        if n == len(cells) or cells[n] != cells[start]:
            yield int(cells[start]), start, n - start
            start = n


def _strip(ax: Axes, y: int, snapshot: Map, *, marked: bool) -> None:
    """Draw the cells after one step, framed if it is the selected one."""
    size = len(snapshot.cells)
    streams = getattr(snapshot, "n_streams", 1)
    each = size // streams
    for n in range(streams):
        look: dict[str, Any] = {"facecolor": "white", "edgecolor": INK, "linewidth": 0.7 if streams == 1 else 1.6}
        ax.add_patch(Rectangle((n * each, y - _BAR / 2), each, _BAR, label="strip", clip_on=False, **look))
    for kind, start, length in runs(snapshot.cells):
        if kind != EMPTY:
            ax.add_patch(Rectangle((start, y - _BAR / 2), length, _BAR, label=str(kind), zorder=2, **_look(kind)))
    if marked:
        frame = Rectangle((0, y - _BAR / 2), size, _BAR, label="_selected", zorder=4, **style.locked_edge())
        frame.set_clip_on(False)
        ax.add_patch(frame)


def _name_runs(fig: Figure, ax: Axes, snapshots: Sequence[Map]) -> None:
    """Write into each run as much of its name as there is room for."""
    fig.draw_without_rendering()
    scale = ax.transData.transform((1, 0))[0] - ax.transData.transform((0, 0))[0]
    for y, snapshot in enumerate(snapshots):
        for kind, start, length in runs(snapshot.cells):
            if kind == EMPTY:
                continue
            look: dict[str, Any] = {"color": style.ink_on(_shade(kind))} if kind >= 0 else {"bbox": text_layout.BACKED}
            text = ax.text(start + length / 2, y, "", ha="center", va="center_baseline", fontsize=8.5, zorder=5, **look)
            text.set_in_layout(False)
            for said in _names(kind, length):
                text.set_text(said)
                if text_layout.extent(text).width + 6 <= length * scale:
                    break
            else:
                text.remove()


def _names(kind: int, length: int) -> list[str]:
    """What may be written into a run of cells, the longest first."""
    if kind >= 0:
        return [f"seq {kind}: {length} cells", f"seq {kind}: {length}", f"{kind}: {length}", f"{kind}"]
    what = "shared" if kind == SHARED else "reserved"
    return [f"{what}: {length} cells", f"{what}: {length}", f"{length}"]


def has_room(snapshot: Map) -> bool:
    """Whether the step found room."""
    return not getattr(snapshot, "status", 0) and bool(getattr(snapshot, "admitted", True))


def _refusal(snapshot: Map) -> str:
    """Why a step found no room."""
    status = getattr(snapshot, "status", 0)
    return f"no slot: decode returned {status}" if status else "not admitted"


def step_text(step: Any) -> str:
    """A step of a trace in a few words: ``add 60 tokens to seq 1``."""
    span = "" if (step.p0, step.p1) == (0, -1) else f" from {step.p0} {'on' if step.p1 < 0 else f'to {step.p1 - 1}'}"
    match step.op:
        case "add":
            return f"add {step.n} token{'s' * (step.n != 1)} to seq {step.seq}"
        case "remove":
            return f"remove seq {step.seq}{span}"
        case "copy":
            return f"copy seq {step.seq} to seq {step.to}"
        case "shift":
            return f"shift seq {step.seq}{span} by {step.delta:+d}".replace("-", "−")
        case "keep":
            return f"keep only seq {step.seq}"
        case _:
            return str(step.op)


def _title(snapshots: Sequence[Map]) -> str:
    """The first step that found no room, else a sequence in pieces, else how full the cache gets, as a sentence."""
    if not snapshots:
        return "No step has been taken yet, so the cache is empty"
    refused = next((snapshot for snapshot in snapshots if not has_room(snapshot)), None)
    if refused is not None:
        free = len(refused.cells) - refused.used
        return f"With {free} of {len(refused.cells)} cells free, “{step_text(refused.step)}” finds no room"
    for snapshot in reversed(snapshots):
        pieces: dict[int, int] = {}
        for kind, _, _ in runs(snapshot.cells):
            pieces[kind] = pieces.get(kind, 0) + 1
        split = [kind for kind, n in pieces.items() if kind >= 0 and n > 1]
        if split:
            return f"Sequence {split[0]} is stored in {pieces[split[0]]} pieces: it takes any cells that are free"
    most = max(snapshots, key=lambda snapshot: snapshot.used)
    if not most.used:
        return f"All {len(most.cells)} cells of the cache are empty"
    if len(snapshots) == 1:
        return f"Now {most.used} of {len(most.cells)} cells are in use, each sequence in one piece"
    return f"At most {most.used} of {len(most.cells)} cells are in use, each sequence in one piece"
