"""This computer: what it has, what a process uses of it, and limits on that. One reader per operating system."""
