"""How good a ranking is."""
