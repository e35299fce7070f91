"""AlpacaEval: how often a judge prefers the parallel answer to the sequential one."""
