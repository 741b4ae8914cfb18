"""Quantize a model, weigh its columns, and compare what is left of it with the original."""
