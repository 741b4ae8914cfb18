"""The checks of lab 01's claims: what becomes resident, what waiting for the disk costs, and what fits in memory."""

from labkit.course.claims.rules import checks_in
from labkit.course.lab01.claims import fits, resident, speed

CHECKS = checks_in(resident, speed, fits)
