"""The cells of a cache: who sits where in llama.cpp, and what other ways to hand them out would do."""
