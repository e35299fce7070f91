"""Makes models that write PASTA-LANG."""
