"""Lab 03: what does a token of context cost?"""
