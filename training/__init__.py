"""How the shipped model is made: a synthetic task, a tokenizer, supervised training, an evaluation."""
