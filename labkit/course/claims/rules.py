"""The checks of all labs, and the rule of each in words."""

from __future__ import annotations

import re
from functools import cache
from types import ModuleType

from labkit.course import offers
from labkit.course.claims.finding import Check


def checks_in(*modules: ModuleType) -> dict[str, Check]:
    """The checks in these modules by the id of their claim: the functions ``c001``, ``c002`` and so on."""
    found = {name: check for module in modules for name, check in vars(module).items() if re.fullmatch(r"c\d{3}", name)}
    return {name.upper(): found[name] for name in sorted(found)}


@cache
def checks() -> dict[str, Check]:
    """The check of each claim that has one, by its id, from the labs' folders."""
    return {name: check for lab in offers.modules("claims") for name, check in lab.CHECKS.items()}


def rule(identifier: str) -> str:
    """How the check of a claim decides, in a few sentences; empty if there is no check."""
    check = checks().get(identifier)
    return " ".join((check.__doc__ or "").split()) if check else ""
