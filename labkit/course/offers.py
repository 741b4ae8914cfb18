"""What the labs offer, found by looking into their folders: no list is kept elsewhere.

A lab is a folder ``labNN`` with any of these modules in it. ``figures`` (pictures), ``panels`` (controls) and
``exercises`` (checks of answers) name what they offer in ``__all__``. ``claims`` has ``CHECKS``, the checks of claims
by id. ``needs`` has ``check``, which says whether the lab runs on this computer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

NAMED = ("figures", "panels", "exercises")
"""Kinds of modules that offer what ``__all__`` names. No two labs may offer the same name."""


def labs() -> list[str]:
    """The names of the labs' folders, in order."""
    import labkit.course

    folders = (path for root in labkit.course.__path__ for path in Path(root).iterdir() if path.is_dir())
    return sorted({path.name for path in folders if re.fullmatch(r"lab\d\d", path.name)})


def modules(kind: str) -> Iterator[ModuleType]:
    """The module of this name of each lab that has one. Each is imported when its turn comes."""
    for lab in labs():
        name = f"labkit.course.{lab}.{kind}"
        if find_spec(name) is not None:
            yield import_module(name)


def names(kind: str) -> list[str]:
    """The names of everything that the labs offer of a kind in ``NAMED``."""
    return sorted({name for module in modules(kind) for name in module.__all__})


def find(kind: str, name: str) -> Any:
    """What a lab offers by this name.

    Args:
        kind: one of ``NAMED``.

    Raises:
        AttributeError: no lab offers it.
    """
    for module in modules(kind):
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"no lab offers {name!r} among its {kind}")
