"""Pictures of lab 03."""

from labkit.course.lab03.figures.cache_cost import SizeRow, cache_layers, cache_sizes
from labkit.course.lab03.figures.cache_quality import cache_quality, kld_by_position
from labkit.course.lab03.figures.cells import slot_map
from labkit.course.lab03.figures.context import context_budget
from labkit.course.lab03.figures.depth import speed_at_depth
from labkit.course.lab03.figures.flash_attention import flash_attention
from labkit.course.lab03.figures.policies import cache_policies
from labkit.course.lab03.figures.presets import context_presets
from labkit.planning.context import BudgetRow

__all__ = [
    "BudgetRow",
    "SizeRow",
    "cache_layers",
    "cache_policies",
    "cache_quality",
    "cache_sizes",
    "context_budget",
    "context_presets",
    "flash_attention",
    "kld_by_position",
    "slot_map",
    "speed_at_depth",
]
