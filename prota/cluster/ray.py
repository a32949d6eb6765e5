"""Finding Ray, and a cluster of it."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["LOCAL", "connect"]

# Stands for an address: a cluster of this machine alone, which ends with the program.
LOCAL = "local"


def connect(address: str = LOCAL) -> None:
    """Join the cluster at an address (``auto``, ``host:port``), or start one; what was joined before is kept."""
    if find_spec("ray") is None:
        raise RuntimeError("--ray needs Ray: pip install 'prota[ray]'")
    import ray

    if ray.is_initialized():
        return
    try:
        ray.init(
            address=address, include_dashboard=True if address == LOCAL else None, log_to_driver=False,
            logging_level="warning",
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RuntimeError(f"no Ray cluster at {address} ({reason}): start one with `ray start --head`") from None
