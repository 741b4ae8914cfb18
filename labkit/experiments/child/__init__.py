"""The process in which a measurement or a task happens, from both sides."""
