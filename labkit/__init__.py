"""LLM Memory Labs."""
