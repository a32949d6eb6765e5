"""Fused scoring: the same scores as `prota.scoring`, faster; `dispatch` alone chooses."""
