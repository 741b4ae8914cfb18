"""Quantized blocks: decode and encode them, and explain every bit of one.

A tensor in a GGUF file is a row of blocks. A block holds 32 or 256 weights as small integers, with the scales that turn
them back into numbers. ``decode`` computes these numbers in numpy, equal to the last bit to ggml's; ``explain`` shows
how for one block; ``encode`` makes blocks from numbers.
"""

from labkit.blocks.decoder import Data, Unpacked, decode, unpack
from labkit.blocks.encoder import ENCODABLE, encode
from labkit.blocks.explanation import Explanation, Field, Weight, bit_budget, bits_per_weight, explain
from labkit.blocks.layouts import SUPPORTED

__all__ = [
    "ENCODABLE",
    "SUPPORTED",
    "Data",
    "Explanation",
    "Field",
    "Unpacked",
    "Weight",
    "bit_budget",
    "bits_per_weight",
    "decode",
    "encode",
    "explain",
    "unpack",
]
