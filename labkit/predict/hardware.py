"""Common devices: their memory, bandwidth and link, for predictions about machines other than this one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from labkit.files import data_path

KINDS = ("discrete", "unified", "integrated", "memory")


class HardwareError(ValueError):
    """There is no such device, or it has no GPU; the message says which devices there are, or what to do."""


@dataclass(frozen=True)
class Hardware:
    """One device, from ``datasets/devices.json``.

    Attributes:
        name: as in ``get("rtx-3060-12gb")``.
        title: as its maker writes it.
        kind: ``discrete`` (memory of its own behind a link), ``unified`` or ``integrated`` (a GPU in the CPU's
            memory), or ``memory`` (a CPU and its RAM).
        vram_bytes: its own memory; None where it shares the CPU's.
        ram_bytes: the sizes of RAM it is sold with; empty for discrete ones.
        bandwidth_bytes_per_s: of its memory, the most that is possible; expect 60 to 90 % of it.
        link: such as ``PCIe 4.0 x16``, or ``shared memory``.
        link_bytes_per_s: one way; None where host and device share their memory.
        working_set: how much of shared memory the GPU gets, in words.
        source: the maker's page.
        known: for ``memory``, ``bandwidth`` and ``link``: ``stated``, ``computed`` or ``reported``.
        checked: another page on which the bandwidth was read, or None.
        note: how a figure was computed, and which variants differ.
    """

    name: str
    title: str
    kind: str
    vram_bytes: int | None
    ram_bytes: tuple[int, ...]
    bandwidth_bytes_per_s: int
    link: str
    link_bytes_per_s: int | None
    working_set: str
    source: str
    known: Mapping[str, str]
    checked: str | None
    note: str
    _rule: Mapping[str, Any] | None = None

    def gpu_bytes(self, ram_bytes: int | None = None) -> int:
        """Bytes that a GPU's buffers may take: its own memory, or its share of ``ram_bytes`` (by default the most).

        Raises:
            HardwareError: it has no GPU that llama.cpp gains from.
        """
        if self.vram_bytes is not None:
            return self.vram_bytes
        if self._rule is None:
            raise HardwareError(f"{self.title} has no GPU to offload to: plan for its RAM alone.")
        ram = self.ram_bytes[-1] if ram_bytes is None else ram_bytes
        limit = self._rule["up_to_bytes"]
        return int(ram * self._rule["share" if limit is None or ram <= limit else "share_above"])


@cache
def _catalogue() -> dict[str, Hardware]:
    """All devices of the data file, by name."""
    raw = json.loads(data_path("devices.json").read_text(encoding="utf-8"))
    lanes = raw["link_bytes_per_s_per_lane"]
    found = {}
    for name, row in raw["devices"].items():
        link, rule = row.get("link"), raw["working_set"].get(row.get("working_set"))
        found[name] = Hardware(
            name=name,
            title=row["title"],
            kind=row["kind"],
            vram_bytes=row.get("vram_bytes"),
            ram_bytes=tuple(row.get("ram_bytes", ())),
            bandwidth_bytes_per_s=row["bandwidth_bytes_per_s"],
            link=f"PCIe {link['generation']}.0 x{link['lanes']}" if link else "shared memory",
            link_bytes_per_s=lanes[str(link["generation"])] * link["lanes"] if link else None,
            working_set=rule["rule"] if rule else "",
            source=row["source"],
            known=MappingProxyType(row["known"]),
            checked=row["checked"],
            note=row["note"],
            _rule=MappingProxyType(rule) if rule else None,
        )
    return found


def names() -> list[str]:
    """Names of all devices, in the file's order."""
    return list(_catalogue())


def get(name: str) -> Hardware:
    """The device of that name, in any case.

    Raises:
        HardwareError: there is none; the message offers the closest names.
    """
    found = _catalogue().get(name.lower())
    if found is None:
        close = difflib.get_close_matches(name.lower(), names(), n=3, cutoff=0.4) or names()
        raise HardwareError(f"there is no device {name!r}: did you mean {' or '.join(close)}?")
    return found
