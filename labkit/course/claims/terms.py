"""What the checks of several labs share: the models that they look at, and what their words mean in numbers."""

from __future__ import annotations

from labkit.models.lookup import BUNDLED as BUNDLED
from labkit.settings import Settings
from labkit.units import GiB

SEVEN_B, THIRTEEN_B, EIGHT_B = "llama-2-7b:Q4_K_M", "llama-2-13b:Q4_K_M", "llama-3.1-8b:Q4_K_M"
# Where the kernel must drop pages. It drops none that another process has mapped, and a notebook may have the bundled
# model mapped.
PAGED = "smollm2-135m:F16:filled"
MAPPED = Settings(repack=False)  # the weights are read where the file is mapped, and not copied for this CPU

MOST, LITTLE = 0.9, 0.1  # "all of" a size and "next to nothing" of it: libraries and bookkeeping add a few MiB
IDLE = 0.01  # the disk does no work for a model if a token reads less than this share of the weights from it
CLOSE, NEAR = 0.02, 0.1  # how far off a claimed figure is right, and roughly right
RAM_BYTES, SYSTEM_BYTES = 16 * GiB, 2 * GiB  # the articles' "16 GB machine", and what everything else on it takes
