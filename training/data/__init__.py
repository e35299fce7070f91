"""Training data: prompts and answers are read, kept apart from evaluation prompts, and annotated."""
