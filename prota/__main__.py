"""`python -m prota` is `prota`; torchrun starts it that way."""

from __future__ import annotations

import gc
import os
import sys

__all__ = ["start"]


def start() -> None:
    """The command line. It takes a moment to load, in which Ctrl-C may come already."""
    try:
        from prota.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as end:
        if "triton" not in sys.modules:
            # At its end Python looks for garbage among a million objects. Triton would report what is not looked at.
            gc.freeze()
        # One of several processes: threads of torch's connection may outlive it, and C++ aborts a process that ends
        # before its threads, which torchrun would report as a failure.
        if end.code or int(os.environ.get("WORLD_SIZE", "1")) == 1:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    start()
