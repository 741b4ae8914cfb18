"""The checks of lab 03's claims: what the cache takes, how it is made and filled, what it costs, and its options."""

from labkit.course.claims.rules import checks_in
from labkit.course.lab03.claims import cost, memory, options, size

CHECKS = checks_in(size, options, memory, cost)
