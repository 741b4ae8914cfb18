"""The checks of lab 02's claims: what a GGUF file holds, how blocks are built, how large models are, what they lose.

Most figures follow from headers, which ``labkit.models.shapes`` computes for any published model.
"""

from labkit.course.claims.rules import checks_in
from labkit.course.lab02.claims import blocks, files, quality, sizes

CHECKS = checks_in(files, blocks, sizes, quality)
