"""A panel that shows one block of a tensor, weight by weight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from labkit import blocks, gguf
from labkit.course import figures
from labkit.course.panelkit import Panel, choice, number, slider
from labkit.gguf.tensor_data import read_blocks
from labkit.gguf.types import TYPES


class BlockExplorer(Panel):
    """Choose a tensor, a block and a weight: the bits that make the weight are marked, and the formula is filled in.

    Args:
        path: a GGUF file.
        tensors: names to choose from; by default every matrix of a type that ``blocks`` decodes.
    """

    def __init__(self, path: str | Path, *, tensors: Sequence[str] | None = None) -> None:
        self._header = gguf.read_header(path)
        names = tensors or [t.name for t in self._header.tensors if t.type in blocks.SUPPORTED and len(t.dims) == 2]
        self.tensor = choice("tensor", [(f"{name} ({self._header.tensor(name).type})", name) for name in names])
        self.block = number("block", most=0)
        self.weight = slider("weight", most=0)
        super().__init__([self.tensor, self.block], [self.weight])
        self.on_change(self._choose_tensor, self.tensor)
        self.on_change(self.redraw, self.block, self.weight)
        self._choose_tensor()

    def _choose_tensor(self) -> None:
        """Let block and weight go up to the last ones of the tensor, and show the first."""
        tensor = self._header.tensor(self.tensor.value)
        kind = TYPES[tensor.type]
        self.fit(self.block, most=tensor.nbytes // kind.block_bytes - 1, value=0)
        self.fit(self.weight, most=kind.block_elems - 1, value=0)
        self.redraw()

    def draw(self) -> None:
        tensor = self._header.tensor(self.tensor.value)
        [data] = read_blocks(self._header, tensor.name, first=self.block.value, n=1)
        block = blocks.explain(tensor.type, data)
        weight = block.weight(self.weight.value)
        title = f"{tensor.type}: the bits that make weight {weight.index}"
        self.show(figures.block_map(block.fields, n_bytes=len(block.data), selected=weight.fields, title=title))
        fields = (f"{field.name}: {field.raw} → {field.value:g} ({field.meaning})" for field in weight.fields)
        self.write(str(weight), *fields)
