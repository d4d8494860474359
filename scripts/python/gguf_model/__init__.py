"""Makes Hugging Face folders from GGUF files; scripts/model runs it."""
