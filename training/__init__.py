"""Training: data, the two stages, and what they share; docs/training.md walks the whole way."""
