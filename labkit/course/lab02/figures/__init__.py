"""Pictures of lab 02."""

from labkit.course.lab02.figures.bits import BitRow, what_a_bit_buys
from labkit.course.lab02.figures.block_parts import BlockField
from labkit.course.lab02.figures.block_size import BlockSizeRow, block_size
from labkit.course.lab02.figures.blocks import block_map
from labkit.course.lab02.figures.errors import ErrorRow, error_by_type
from labkit.course.lab02.figures.mixture import TypedTensor, mixture_map
from labkit.course.lab02.figures.size_grid import size_grid
from labkit.course.lab02.figures.weights import BlockFit, block_weights, outlier

__all__ = [
    "BitRow",
    "BlockField",
    "BlockFit",
    "BlockSizeRow",
    "ErrorRow",
    "TypedTensor",
    "block_map",
    "block_size",
    "block_weights",
    "error_by_type",
    "mixture_map",
    "outlier",
    "size_grid",
    "what_a_bit_buys",
]
