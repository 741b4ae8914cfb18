"""Hyperparameters as llama.cpp reads them from a header."""

from __future__ import annotations

from labkit.gguf import GGUFError, Header

EMBEDDING = "token_embd.weight"


def n_vocab(header: Header) -> int:
    """Rows of the token embedding, which is the length of the logits.

    Raises:
        GGUFError: there is none, so this file is not a language model.
    """
    try:
        return header.tensor(EMBEDDING).dims[1]
    except KeyError:
        raise GGUFError(f"{header.path}: there is no {EMBEDDING} in it, so this is not a language model.") from None


def number(header: Header, name: str, default: int = 0) -> int:
    """An integer key of the whole model; ``default`` where it is absent.

    Raises:
        GGUFError: it is not a number.
    """
    value = header.key(name, default)
    if not isinstance(value, (int, float)):
        raise GGUFError(f"{header.path}: the metadata '{header.arch}.{name}' is not a number.")
    return int(value)


def per_layer(header: Header, name: str, layer: int) -> int:
    """An integer key, which may be one number or one for each layer; 0 where it is absent."""
    value = header.key(name, 0)
    if isinstance(value, (int, float)):
        return int(value)
    return int(value[layer]) if layer < len(value) else 0


def has_output(header: Header) -> bool:
    """Whether the model has an output layer of its own; else the token embedding is also the output layer."""
    return any(t.name == "output.weight" for t in header.tensors)
