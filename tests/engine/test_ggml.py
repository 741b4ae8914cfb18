"""ggml's own encoding and decoding, against the gguf package; and reading single blocks of a file."""

from __future__ import annotations

from pathlib import Path

import gguf as peer
import numpy as np
import pytest
from support.small import small

from labkit import gguf
from labkit.engine import ggml
from labkit.gguf.tensor_data import read_blocks
from labkit.models.forge import forge

ROWS = np.random.default_rng(3).normal(0, 0.02, (4, 512)).astype(np.float32)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL"])
def test_decode_is_the_gguf_packages(name: str) -> None:
    data = ggml.encode(name, ROWS)
    kind = peer.GGMLQuantizationType[name]
    assert np.array_equal(ggml.decode(name, data), peer.quants.dequantize(data, kind))
    assert np.abs(ggml.decode(name, data) - ROWS.reshape(-1)).max() < np.abs(ROWS).max() / 4


def test_importance_changes_what_is_kept() -> None:
    matters = np.where(np.arange(512) < 256, 100.0, 0.01)
    plain, weighted = (ggml.decode("Q3_K", ggml.encode("Q3_K", ROWS, importance=i)) for i in (None, matters))
    error = [np.square(x.reshape(4, 512) - ROWS) @ matters for x in (plain, weighted)]
    assert error[1].sum() < error[0].sum()


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="whole number of Q4_K blocks"):
        ggml.decode("Q4_K", bytes(143))
    with pytest.raises(ValueError, match="rows of 300"):
        ggml.encode("Q4_K", np.zeros(300))
    with pytest.raises(ValueError, match="importance"):
        ggml.encode("IQ2_XXS", np.zeros(256))


def test_blocks_of_a_file_are_those_of_the_reader(tmp_path: Path) -> None:
    shape = small(embedding_length=256, feed_forward_length=512, vocab_size=512)
    header = gguf.read_header(forge(shape, "Q4_0", path=tmp_path / "small.gguf", fill=True).path)
    name = "blk.1.attn_q.weight"
    tensor = next(t for t in peer.GGUFReader(tmp_path / "small.gguf").tensors if t.name == name)
    whole = tensor.data.reshape(-1, 18)
    assert tensor.tensor_type.name == "Q4_0" and len(np.unique(whole)) > 200
    assert np.array_equal(read_blocks(header, name), whole)
    assert np.array_equal(read_blocks(header, name, first=7, n=2), whole[7:9])
    with pytest.raises(ValueError, match="blocks 0 to"):
        read_blocks(header, name, first=len(whole), n=1)
    with pytest.raises(KeyError):
        read_blocks(header, "nothing")
