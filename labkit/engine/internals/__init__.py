"""Everything that depends on how ggml lays out its structs, or on llama.cpp's debug log.

``README.md`` in this folder says what to check when the pinned llama-cpp-python is raised.
"""

from __future__ import annotations

from labkit.engine.install import EngineError


class LayoutError(EngineError):
    """This build of ggml lays out a struct differently from the pinned one; the message says what to do."""
