"""The checks of lab 03's claims: what the cache takes, what using it costs, and which options there are."""

from labkit.course.lab03.claims import options, size, use

CHECKS = dict(sorted((size.CHECKS | use.CHECKS | options.CHECKS).items()))
