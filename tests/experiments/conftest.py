"""Fixtures of the tests that start processes."""

import sys
from pathlib import Path

import pytest
from support import processes
from support.small import small

from labkit.models.forge import forge
from labkit.system import probe

nothing_left = pytest.fixture(processes.nothing_left)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 3 MiB, so that a process takes little else."""
    narrow = {"embedding_length": 512, "attention_head_count_kv": 2, "feed_forward_length": 1024, "vocab_size": 512}
    shape = small(attention_head_count=8, **narrow)
    return forge(shape, "Q4_0", path=tmp_path_factory.mktemp("tiny") / "tiny.gguf").path


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 141 MiB with real bytes, which no other process has mapped."""
    path = forge(small(block_count=4), "Q4_0", path=tmp_path_factory.mktemp("filled") / "x.gguf", fill=True).path
    if sys.platform.startswith("linux") and probe.evict(path).after_bytes != 0:
        pytest.skip("this file system keeps its files in memory: nothing can be evicted")
    return path
