"""Pictures of the labs: one function each, returning a matplotlib Figure; ``show`` puts one into a notebook."""

from labkit.figures.bits import BitRow, what_a_bit_buys
from labkit.figures.blocks import BlockField, block_map
from labkit.figures.boundary import boundary
from labkit.figures.cachecost import SizeRow, cache_layers, cache_sizes, flash_attention
from labkit.figures.cachequality import cache_quality, kld_by_position
from labkit.figures.cells import slot_map
from labkit.figures.cliff import CliffPoint, cliff
from labkit.figures.context import BudgetRow, context_budget
from labkit.figures.crossing import CrossingRow, crossing
from labkit.figures.depth import speed_at_depth
from labkit.figures.image import png, show
from labkit.figures.latency import first_token, latency
from labkit.figures.layermap import layer_map
from labkit.figures.layers import layer_faults
from labkit.figures.lock import what_is_locked
from labkit.figures.lockbudget import lock_budget
from labkit.figures.machine import machine_card
from labkit.figures.mechanisms import mechanisms
from labkit.figures.memory import where_the_model_is
from labkit.figures.mixture import TypedTensor, mixture_map, size_grid
from labkit.figures.offload import offload_plan, two_processes
from labkit.figures.offloadspeed import DeviceCurve, offload_speed, what_if_devices
from labkit.figures.policies import cache_policies
from labkit.figures.presets import context_presets
from labkit.figures.quant import BlockSizeRow, ErrorRow, block_size, error_by_type
from labkit.figures.residency import residency_strip
from labkit.figures.speed import SpeedRow, roofline, speed_check
from labkit.figures.timeline import timeline
from labkit.figures.tunersearch import tuner_search
from labkit.figures.weights import BlockFit, block_weights, outlier

__all__ = [
    "BitRow",
    "BlockField",
    "BlockFit",
    "BlockSizeRow",
    "BudgetRow",
    "CliffPoint",
    "CrossingRow",
    "DeviceCurve",
    "ErrorRow",
    "SizeRow",
    "SpeedRow",
    "TypedTensor",
    "block_map",
    "block_size",
    "block_weights",
    "boundary",
    "cache_layers",
    "cache_policies",
    "cache_quality",
    "cache_sizes",
    "cliff",
    "context_budget",
    "context_presets",
    "crossing",
    "error_by_type",
    "first_token",
    "flash_attention",
    "kld_by_position",
    "latency",
    "layer_faults",
    "layer_map",
    "lock_budget",
    "machine_card",
    "mechanisms",
    "mixture_map",
    "offload_plan",
    "offload_speed",
    "outlier",
    "png",
    "residency_strip",
    "roofline",
    "show",
    "size_grid",
    "slot_map",
    "speed_at_depth",
    "speed_check",
    "timeline",
    "tuner_search",
    "two_processes",
    "what_a_bit_buys",
    "what_if_devices",
    "what_is_locked",
    "where_the_model_is",
]
