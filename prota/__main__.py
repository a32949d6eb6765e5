"""`python -m prota` is `prota`; torchrun starts it that way."""

from __future__ import annotations

import sys

__all__ = ["start"]


def start() -> None:
    """The command line. It takes a moment to load, in which Ctrl-C may come already."""
    try:
        from prota.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    start()
