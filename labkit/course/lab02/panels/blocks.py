"""A panel that takes one block of a tensor apart, weight by weight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from labkit import blocks, gguf
from labkit.course import figures
from labkit.course.panelkit import WIDE, image, say
from labkit.gguf.tensor_data import read_blocks
from labkit.gguf.types import TYPES


class BlockExplorer:
    """Choose a tensor, a block and a weight: the bits that make that weight are marked, and the sum is shown.

    Attributes:
        tensor, block, weight: the controls.
        view: the panel, for ``display``.
    """

    def __init__(self, path: str | Path, *, tensors: Sequence[str] | None = None) -> None:
        self._header = gguf.read_header(path)
        names = tensors or [t.name for t in self._header.tensors if t.type in blocks.SUPPORTED and len(t.dims) == 2]
        options = [(f"{name} ({self._header.tensor(name).type})", name) for name in names]
        self.tensor = widgets.Dropdown(options=options, description="tensor", style=WIDE)
        self.block = widgets.BoundedIntText(value=0, min=0, max=0, description="block", style=WIDE)
        self.weight = widgets.IntSlider(
            value=0, min=0, max=0, description="weight", continuous_update=False, style=WIDE
        )
        self.weight.layout.width = "480px"
        self.image = image()
        self.text = widgets.HTML()
        self._resize()
        self.tensor.observe(lambda change: self._resize(), names="value")
        self.block.observe(lambda change: self._draw(), names="value")
        self.weight.observe(lambda change: self._draw(), names="value")
        self.view = widgets.VBox([widgets.HBox([self.tensor, self.block]), self.weight, self.image, self.text])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def _resize(self) -> None:
        """Fit the controls to the chosen tensor."""
        chosen = self._header.tensor(self.tensor.value)
        kind = TYPES[chosen.type]
        self.block.value = self.weight.value = 0
        self.block.max = chosen.nbytes // kind.block_bytes - 1
        self.weight.max = kind.block_elems - 1
        self._draw()

    def _draw(self) -> None:
        chosen = self._header.tensor(self.tensor.value)
        [data] = read_blocks(self._header, chosen.name, first=self.block.value, n=1)
        taken = blocks.explain(chosen.type, data)
        weight = taken.weight(self.weight.value)
        title = f"{chosen.type}: the bits that make weight {weight.index}"
        shown = figures.block_map(taken.fields, n_bytes=len(taken.data), selected=weight.fields, title=title)
        self.image.value = figures.png(shown)
        lines = [
            str(weight),
            *(f"{field.name}: {field.raw} → {field.value:g} ({field.meaning})" for field in weight.fields),
        ]
        self.text.value = "".join(say(line) for line in lines)
