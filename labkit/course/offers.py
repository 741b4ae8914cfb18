"""What the labs' folders offer, found by looking: a lab is a folder ``labNN`` with any of these modules in it.

``figures`` (pictures), ``panels`` (controls), ``exercises`` (checks of answers), ``claims`` (checks of claims) and
``needs`` (what it wants of a computer). Each names what it offers in ``__all__``; ``claims`` offers ``CHECKS``, ``needs``
offers ``check``. No list is kept elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


def labs() -> list[str]:
    """The names of the labs' folders, in order."""
    import labkit.course

    folders = (path for root in labkit.course.__path__ for path in Path(root).iterdir() if path.is_dir())
    return sorted({path.name for path in folders if re.fullmatch(r"lab\d\d", path.name)})


def modules(kind: str) -> Iterator[ModuleType]:
    """The module of this kind of each lab that has one, imported one by one."""
    for lab in labs():
        name = f"labkit.course.{lab}.{kind}"
        if find_spec(name) is not None:
            yield import_module(name)


def names(kind: str) -> list[str]:
    """Everything that the labs offer of this kind."""
    return sorted({name for module in modules(kind) for name in module.__all__})


def find(kind: str, name: str) -> Any:
    """The thing of this name.

    Raises:
        AttributeError: no lab offers it.
    """
    for module in modules(kind):
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"no lab offers {name!r} among its {kind}")
