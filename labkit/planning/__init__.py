"""Whether a model fits, with which context, layers and flags."""
