"""Whether the parent has asked this child to go on after a pause; it does so by writing to the child's stdin."""

from __future__ import annotations

import threading

resumed = threading.Event()
