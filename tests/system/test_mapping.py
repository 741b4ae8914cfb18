"""A file mapped from Python: what touching, evicting and readahead do, live."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from labkit.gguf import Tensor
from labkit.system.mapping import MappedFile

PAGE = mmap.PAGESIZE
pytestmark = pytest.mark.live
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux drops and shows single pages")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pages"
    path.write_bytes(b"".join(bytes([i % 251]) * PAGE for i in range(64)) + b"tail")
    return path


@pytest.mark.parametrize(
    ("start", "nbytes", "pages", "touched"),
    [
        (0, PAGE, 1, PAGE),
        (0, PAGE + 1, 2, PAGE + 1),
        (PAGE - 1, 2, 2, 2),
        (100, 1, 1, 1),
        (64 * PAGE, 4, 1, 4),
        (63 * PAGE, 10 * PAGE, 2, PAGE + 4),
        (0, 10**12, 65, 64 * PAGE + 4),
        (65 * PAGE, PAGE, 0, 0),
        (5, 0, 0, 0),
    ],
)
def test_touch_reads_every_page_of_the_range_once(
    file: Path, start: int, nbytes: int, pages: int, touched: int
) -> None:
    with MappedFile(file) as mapped:
        touch = mapped.touch(start, nbytes)
    assert (touch.pages, touch.nbytes) == (pages, touched)


@linux_only
def test_mapped_is_not_resident_until_touched(file: Path) -> None:
    with MappedFile(file) as mapped:
        assert mapped.resident().resident_bytes == 0
        mapped.read_ahead(on=False)
        tensor = Tensor("t", (4, 1), "F32", 10 * PAGE, 3 * PAGE, 0)
        touch = mapped.touch_tensor(tensor)
        pages = mapped.resident().pages
        assert touch.pages == 3 and pages is not None
        assert pages[10:13] == b"\1\1\1"
        mapped.evict()
        assert mapped.resident().resident_bytes == 0


@linux_only
def test_evicting_forgets_the_page_cache_too_and_keeps_the_data(file: Path) -> None:
    with MappedFile(file) as mapped:
        mapped.touch(0, 64 * PAGE)
        cached = mapped.cached()
        if cached.pages is None or cached.resident_bytes == 0:
            pytest.skip(f"the page cache of {file.parent} is not shown here")
        with open(file, "rb") as again:
            import os

            os.fsync(again.fileno())
        assert mapped.evict()
        assert (mapped.cached().resident_bytes or 0) < file.stat().st_size
        assert mapped.touch(0, 64 * PAGE).pages == 64


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty"):
        MappedFile(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        MappedFile(tmp_path / "missing")


def test_closing_twice_is_harmless(file: Path) -> None:
    mapped = MappedFile(file)
    mapped.close()
    mapped.close()
