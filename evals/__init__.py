"""Measurements of speed and quality, against answers in sequence; docs/evaluation.md has the commands."""
