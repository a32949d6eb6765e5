"""`python -m prota` is `prota`; torchrun starts it that way."""

from prota.cli import main

main()
