"""Everything that reads ggml's structs by position, or its debug log. README.md says what to check when it changes."""
