"""Measurements in a child process, and what is made of several of them."""
