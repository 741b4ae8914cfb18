"""Lab 04: which layers should leave, and what does that buy?"""
