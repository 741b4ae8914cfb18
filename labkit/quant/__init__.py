"""Quantize a model, measure the importance of its columns, and compare it with the original."""
