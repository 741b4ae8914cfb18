"""Lab 00: what is this machine, and how fast should it be?"""
