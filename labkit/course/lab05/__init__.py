"""Lab 05: when does locking help, and when does it kill?"""
