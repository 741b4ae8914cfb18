"""Tensor types of ggml and value types of GGUF metadata, with the bytes that each takes."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class GGMLType:
    """One tensor type: ``block_elems`` weights are stored together in ``block_bytes`` bytes."""

    id: int
    name: str
    block_elems: int
    block_bytes: int

    @property
    def bpw(self) -> float:
        """Bits per weight, scales included."""
        return self.block_bytes * 8 / self.block_elems


# ids: ``enum ggml_type`` in ggml/include/ggml.h; sizes: ``type_traits`` in ggml/src/ggml.c.
# Ids 4, 5, 31-33 and 36-38 belonged to layouts that ggml no longer reads.
_ROWS = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)

TYPES_BY_ID: dict[int, GGMLType] = {row[0]: GGMLType(*row) for row in _ROWS}
TYPES: dict[str, GGMLType] = {t.name: t for t in TYPES_BY_ID.values()}


def row_bytes(type_name: str, ne0: int) -> int:
    """Bytes of one row of ``ne0`` elements (``ggml_row_size`` in ggml/src/ggml.c).

    Raises:
        ValueError: the type is unknown, or ``ne0`` is negative or not a whole number of blocks.
    """
    t = TYPES.get(type_name)
    if t is None:
        raise ValueError(f"{type_name!r} is not a ggml tensor type; known are {', '.join(TYPES)}.")
    if ne0 < 0 or ne0 % t.block_elems:
        raise ValueError(f"a row of {ne0} elements is not a whole number of {type_name} blocks of {t.block_elems}.")
    return ne0 // t.block_elems * t.block_bytes


class ValueType(NamedTuple):
    """A metadata value type: its id, llama.cpp's short name, and its ``struct`` code ("" for str and arr)."""

    id: int
    name: str
    code: str


# ``enum gguf_type`` in ggml/include/gguf.h
VALUE_TYPES: tuple[ValueType, ...] = tuple(
    ValueType(i, name, code)
    for i, (name, code) in enumerate(
        [
            ("u8", "B"),
            ("i8", "b"),
            ("u16", "H"),
            ("i16", "h"),
            ("u32", "I"),
            ("i32", "i"),
            ("f32", "f"),
            ("bool", "?"),
            ("str", ""),
            ("arr", ""),
            ("u64", "Q"),
            ("i64", "q"),
            ("f64", "d"),
        ]
    )
)
MAX_NAME = 64  # GGML_MAX_NAME in ggml/include/ggml.h, ending NUL included
MAX_DIMS = 4  # GGML_MAX_DIMS
DEFAULT_ALIGNMENT = 32  # GGUF_DEFAULT_ALIGNMENT in ggml/include/gguf.h
