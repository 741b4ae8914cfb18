"""Panels of lab 03."""

from labkit.course.lab03.panels.cache_quality import CacheQuality
from labkit.course.lab03.panels.context_cost import ContextCost
from labkit.course.lab03.panels.slot_map import SlotMap

__all__ = ["CacheQuality", "ContextCost", "SlotMap"]
