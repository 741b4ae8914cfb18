"""Controls of lab 02."""

from labkit.course.lab02.panels.blocks import BlockExplorer
from labkit.course.lab02.panels.costs import WhatItCosts

__all__ = ["BlockExplorer", "WhatItCosts"]
