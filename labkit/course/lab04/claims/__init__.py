"""The checks of lab 04's claims: which layers move to a device, how fast that is, and which options there are."""

from labkit.course.claims.rules import checks_in
from labkit.course.lab04.claims import layers, options, speed

CHECKS = checks_in(layers, options, speed)
