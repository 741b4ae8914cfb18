"""What this machine has, in one picture."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from labkit.course.figurekit import guesses, limits, style, text_layout
from labkit.course.figurekit.style import FAINT, INK, LIMIT
from labkit.units import GiB, fmt_bytes

if TYPE_CHECKING:
    from labkit.system.machine import Machine

_ROWS = ("RAM", "limit here", "available now", "lockable", "swap", "cores")
_LIMITS = {
    "MemTotal": "the RAM itself",
    "MEM_LIMIT": "the variable MEM_LIMIT",
    "RLIMIT_AS": "RLIMIT_AS of this process",
}


@style.styled
def machine_card(machine: Machine, *, guess_gib: float | None = None) -> Figure:
    """RAM, the limit that binds here, what is available, lockable and swappable, as bars on one axis, and the cores.

    A figure that this system does not give is said to be not readable, with the reason; it is never drawn as 0.

    Args:
        machine: as read by ``labkit.system.machine.machine()``.
        guess_gib: the learner's own prediction of what is available now.
    """
    fig = style.new_figure(3.5, title=_title(machine))
    ax = fig.add_subplot()
    ax.set_ylim(len(_ROWS) - 0.4, -0.6)
    ax.set_yticks(range(len(_ROWS)), _ROWS)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("memory, GiB")
    sizes = [machine.ram_bytes, machine.limit_bytes, machine.available_bytes, machine.swap_bytes]
    largest = max((size for size in sizes if size), default=GiB)
    own = guesses.number(guess_gib)
    ax.set_xlim(0, max(largest / GiB, guesses.within(own, largest / GiB)) * 1.02)

    limit_by = _LIMITS.get(machine.limit_by or "", text_layout.shorten(machine.limit_by or "", 44))
    texts = [
        _row(ax, 0, machine, "ram_bytes", FAINT),
        _row(ax, 1, machine, "limit_bytes", FAINT, f"set by {limit_by}" if limit_by else ""),
        _row(ax, 2, machine, "available_bytes", "#BDBDBD"),
        _lockable(ax, 3, machine, largest),
        _row(ax, 4, machine, "swap_bytes", "white"),
        _say(ax, 0, 5, _cores(machine)),
    ]
    if machine.limit_bytes is not None:
        ax.plot([machine.limit_bytes / GiB] * 2, [-0.55, 2.5], label="_limit", **limits.LINE | {"zorder": 4})
        texts[1].set_color(LIMIT)
    if own is not None:
        *_, said = guesses.draw(ax, own, _ROWS.index("available now") + 0.5, fmt_bytes(own * GiB))
        texts[2].set_text(f"{texts[2].get_text()}; {said}")
    text_layout.make_room(fig, {ax: texts})
    return fig


def _row(ax: Axes, y: int, machine: Machine, field: str, colour: str, note: str = "") -> Text:
    """Draw one figure of the machine; return what is written beside its bar, or in its place."""
    size: int | None = getattr(machine, field)
    if size is None:
        return _say(ax, 0, y, _unreadable(machine, field))
    ax.barh(y, size / GiB, 0.62, facecolor=colour, edgecolor=INK, linewidth=0.9, label=field)
    said = "none" if field == "swap_bytes" and size == 0 else fmt_bytes(size)
    return _say(ax, size / GiB, y, f"{said}, {note}" if note else said)


def _lockable(ax: Axes, y: int, machine: Machine, largest: float) -> Text:
    """Draw what mlock may hold, with the dark edge that means locked in every picture; return its text."""
    if machine.ipc_lock or machine.memlock_unlimited:
        why = "CAP_IPC_LOCK" if machine.ipc_lock else "RLIMIT_MEMLOCK is unlimited"
        ends = machine.lockable_bytes if machine.lockable_bytes is not None else machine.limit_bytes
        if ends is not None:
            ax.barh(y, ends / GiB, 0.62, zorder=3, label="lockable_bytes", **style.locked_edge())
        upto = f"up to {fmt_bytes(ends)}" if ends is not None else "no bound"
        return _say(ax, (ends or 0) / GiB, y, f"{upto} ({why})")
    size = machine.lockable_bytes if machine.lockable_bytes is not None else machine.memlock_bytes
    if size is None:
        return _say(ax, 0, y, _unreadable(machine, "lockable_bytes"))
    ax.barh(y, min(size, largest) / GiB, 0.62, zorder=3, label="lockable_bytes", **style.locked_edge())
    return _say(ax, min(size, largest) / GiB, y, f"{fmt_bytes(size)} (RLIMIT_MEMLOCK)")


def _say(ax: Axes, x: float, y: float, text: str) -> Text:
    """What is written beside a place in a row."""
    return text_layout.beside(ax, x, y, text, fontsize=9)


def _unreadable(machine: Machine, field: str) -> str:
    """Why this system does not give a figure."""
    reason = machine.reasons.get(field) or machine.reasons.get(field.removesuffix("_bytes")) or "no reason given"
    return "\n".join(textwrap.wrap(f"not readable here: {reason}", 78, max_lines=2, placeholder=" …"))


def _cores(machine: Machine) -> str:
    """The cores in words: how many, what limits them, their cache, the processor's name."""
    if machine.cores is None:
        return _unreadable(machine, "cores")
    parts = [f"{machine.cores} usable"]
    if machine.cpu_quota is not None:
        parts.append(f"quota of {machine.cpu_quota:g}")
    if machine.l3_bytes is not None:
        parts.append(f"L3 cache {fmt_bytes(machine.l3_bytes)}")
    name = text_layout.shorten(machine.cpu_name, 70) if machine.cpu_name else ""
    return ", ".join(parts) + (f"\n{name}" if name else "")


def _title(machine: Machine) -> str:
    """What a process may use, as a sentence."""
    if machine.limit_bytes is None:
        return "What a process here may use is not readable on this system"
    may = f"A process here may use {fmt_bytes(machine.limit_bytes)}"
    if machine.ram_bytes is None:
        return may
    if machine.limit_bytes >= machine.ram_bytes:
        return f"{may}, all of the RAM"
    return f"{may} of the machine's {fmt_bytes(machine.ram_bytes)}"
