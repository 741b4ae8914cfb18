"""Lab 02: what is inside 4.5 bits?"""
