"""Whether the parent has written to this child's stdin: it does so to end a pause."""

from __future__ import annotations

import threading

resumed = threading.Event()
