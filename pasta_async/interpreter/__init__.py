"""Acts on PASTA-LANG while a model writes it: `machine` decides, `runner` sends requests and moves tokens."""
