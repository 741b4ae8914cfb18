"""What the checks of lab 02's claims measure: how blocks are built, which types a mixture gives, what it loses."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import engine, gguf, predict
from labkit.blocks.random import random_blocks
from labkit.course.claims.bench import Part
from labkit.course.claims.terms import BUNDLED
from labkit.course.claims.unsettled import or_unsettled
from labkit.engine import ggml
from labkit.experiments.child.task import TaskError
from labkit.gguf import TYPES, GGUFError
from labkit.models import mixtures
from labkit.models.lookup import ModelError
from labkit.settings import Settings
from labkit.system.machine import usable_cores

if TYPE_CHECKING:
    from labkit.quant.quality import Quality


class QuantBench(Part):
    """ggml's blocks taken apart, and the bundled model quantized."""

    def head(self, model: str) -> bytes:
        """The bytes of a model's file before its first tensor.

        Raises:
            Unsettled: there is no such model here.
        """
        with open(self.bench.path(model), "rb") as file:
            return file.read(self.bench.header(model).data_offset)

    def weights_changed(self, type_name: str) -> tuple[int, ...]:
        """For each byte of a block, how many weights ggml decodes to another value when its lowest bit changes.

        Raises:
            Unsettled: llama.cpp is not installed.
        """
        block = TYPES[type_name]
        changed = np.zeros((block.block_bytes, block.block_elems), bool)
        self.bench.looked = True
        for original in random_blocks(type_name, 16, seed=0):  # a weight of 0 hides its scale, but not in all blocks
            flipped = original ^ np.eye(block.block_bytes, dtype=np.uint8)
            with or_unsettled(engine.EngineError):
                weights = ggml.decode(type_name, np.vstack((original, flipped))).reshape(-1, block.block_elems)
            changed |= weights[1:] != weights[0]
        return tuple(changed.sum(axis=1).tolist())

    def rounding_error(self, type_name: str) -> float:
        """Root mean square error of normally distributed weights after ggml rounded them, as a share of their spread.

        Raises:
            Unsettled: llama.cpp is not installed.
        """
        weights = np.random.default_rng(0).standard_normal(1 << 18, np.float32)
        self.bench.looked = True
        with or_unsettled(engine.EngineError):
            error = ggml.decode(type_name, ggml.encode(type_name, weights)) - weights
        return float(np.sqrt(np.mean(error**2)) / weights.std())

    def types_given(self, model: str, quant: str) -> dict[str, str]:
        """The type that llama.cpp gives each tensor of a model when it quantizes it; the file is not kept.

        Raises:
            Unsettled: llama.cpp is not installed or refuses.
        """
        source, ftype = self.bench.path(model), mixtures.find(quant).ftype
        self.bench.looked = True
        with or_unsettled(engine.EngineError, GGUFError, OSError), tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "quantized.gguf")
            engine.quantize(source, target, ftype=ftype, threads=usable_cores(), allow_requantize=True)
            return {tensor.name: tensor.type for tensor in gguf.read_header(target).tensors}

    def repacked_bytes(self, model: str) -> int:
        """Bytes of a model's weights that llama.cpp would repack for this CPU (predicted)."""
        return predict.memory(self.bench.header(model), Settings(), cpu_features=engine.cpu_features()).repack_bytes

    def quality(self, quant: str, *, imatrix: bool = False) -> Quality:
        """What the bundled model loses in a mixture, compared with the F16 that is made from its own file.

        Raises:
            Unsettled: llama.cpp is not installed or refuses, or the disk is full.
        """
        self.bench.looked = True
        known = self.bench.qualities
        if (quant, imatrix) not in known:
            known[quant, imatrix] = self._quality(quant, imatrix)
        return known[quant, imatrix]

    def _quality(self, quant: str, imatrix: bool) -> Quality:
        """The same, measured."""
        from labkit.quant.imatrix import collect
        from labkit.quant.quality import quality
        from labkit.quant.quantize import quantize

        how: dict[str, Any] = {"progress": self.bench.progress}
        with or_unsettled(TaskError, ModelError, GGUFError, OSError):
            reference = quantize(BUNDLED, "F16", **how).path
            matrix = collect(reference, **how) if imatrix else None
            return quality(quantize(reference, quant, imatrix=matrix, **how).path, reference, **how)
