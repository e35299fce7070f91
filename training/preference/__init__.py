"""Stage 2, preference optimisation: sample answers, score them, train on the best and the worst."""
