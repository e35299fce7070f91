"""Measures speed and quality against the sequential answer."""
