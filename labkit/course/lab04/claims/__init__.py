"""The checks of lab 04's claims: which layers leave, how fast that is, and which options there are."""

from labkit.course.lab04.claims import layers, options, speed

CHECKS = dict(sorted((layers.CHECKS | options.CHECKS | speed.CHECKS).items()))
