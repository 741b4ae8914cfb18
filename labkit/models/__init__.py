"""Models by name and by shape: their metadata, tensors and types, files forged from them, and quantization plans."""
