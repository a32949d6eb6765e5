"""`prota train`."""

from __future__ import annotations

import atexit
import shlex
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prota.cli.options import (
    INTERRUPTED,
    AllowMissing,
    AsJson,
    BackendName,
    ConfigFile,
    Device,
    Overrides,
    StartModel,
    load_experiment,
    print_json,
    require_config,
)
from prota.cli.progress import progress_bar

if TYPE_CHECKING:
    from prota.runs import TrainingState

__all__ = ["Display", "StopRequest", "train"]


def train(
    config: ConfigFile,
    run: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="run folder for the log and checkpoints")],
    overrides: Overrides = None,
    start: StartModel = None,
    device: Device = "auto",
    backend: BackendName = "auto",
    allow_missing: AllowMissing = 0,
    as_json: AsJson = False,
) -> None:
    """Train a model. After an interruption the same command resumes. With several devices, start it with torchrun."""
    require_config(config)
    from prota.kernels.dispatch import using
    from prota.runtime import OtherProcessError
    from prota.training.api import Trainer

    trainer = Trainer.from_experiment(load_experiment(config, overrides, start), run, device=device)
    stop = StopRequest()
    try:
        with using(backend), Display(trainer.world.first, run) as display:
            result = trainer.train(report=display, should_stop=stop, allow_missing=allow_missing)
    except OtherProcessError:
        raise SystemExit(1) from None
    # After an error the connection stays open until this process has reported it: the others wait for that.
    trainer.world.close()
    if not trainer.world.first:
        return
    if as_json:
        state = result.state
        print_json({
            "run": str(run), "finished": result.finished, "step": state.step, "steps": result.steps,
            "best_step": state.best_step, "best_value": state.best_value,
        }, indent=2)  # fmt: skip
    elif result.finished:
        typer.echo(f"finished {result.steps} steps: {run}")
        typer.echo(_chosen(result.state))
        typer.echo(f"evaluate it with: prota evaluate {shlex.quote(str(run))}")
    else:
        typer.echo(
            f"interrupted at step {result.state.step} of {result.steps}, saved in {run}; the same command resumes"
        )
    if not result.finished:
        raise SystemExit(INTERRUPTED)


def _chosen(state: TrainingState) -> str:
    if state.best_step is None:
        return "no validation: evaluate uses the last step"
    return f"best on validation at step {state.best_step}: {state.best_value:.1f} (mean of R@1/5/10, both directions)"


# Seconds in which a second signal is taken for the first: a scheduler may signal all processes, and torchrun again.
_SAME = 2.0


class StopRequest:
    """Ctrl-C or SIGTERM ends the run after the current step; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        self._since = 0.0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        # Python restores the default handlers at its end: a second signal would kill a process that is done.
        atexit.register(self._ignore)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, self._since = True, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._since > _SAME:
            raise KeyboardInterrupt

    def _ignore(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM) if self.asked else ():
            signal.signal(number, signal.SIG_IGN)

    def __call__(self) -> bool:
        return self.asked


class Display:
    """The progress bar of a run, and TensorBoard if it is installed."""

    def __init__(self, visible: bool, run: Path | None) -> None:
        self.bar = progress_bar(visible=visible)
        self.console = self.bar.console
        self.board: Any = _tensorboard(run) if visible and run is not None else None
        self.task: Any = None
        self.features: Any = None

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar.live.is_started:
            self.bar.stop()
        if self.board is not None:
            self.board.close()

    def computed(self, done: int, total: int) -> None:
        if self.features is None:
            self.bar.start()
            self.features = self.bar.add_task("features of the frozen tower", note="videos")
        self.bar.update(self.features, completed=done, total=total)
        if done == total:
            self.bar.remove_task(self.features)
            self.features = None

    def started(
        self, groups: list[tuple[str, int, float]], sources: list[tuple[str, int, int, int]], steps: int, step: int
    ) -> None:
        from rich.table import Table

        rows = (
            f"{name}: {captions} captions of {videos} videos, {own} steps" for name, captions, videos, own in sources
        )
        title = "\n".join(rows)
        table = Table("part", "parameters", "learning rate", title=title)
        for name, count, rate in groups:
            table.add_row(name, f"{count:,}", f"{rate:g}" if rate else "frozen")
        self.bar.start()
        self.console.print(table)
        if step:
            self.console.print(f"resuming after step {step}")
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task("training", total=steps, completed=step, note="")

    def stepped(self, record: dict[str, Any]) -> None:
        note = (
            f"loss {record['total']:.3f}  {record['items_per_second']:.0f} pairs/s  "
            f"waiting for data {record['data_wait']:.0%}"
        )
        self.bar.update(self.task, completed=record["step"], note=note)
        if self.board is not None:
            for name, value in record.items():
                if name not in ("step", "epoch", "source"):
                    self.board.add_scalar(f"train/{name}", value, record["step"])

    def validated(self, record: dict[str, Any]) -> None:
        sides = record["validation"]
        both = "  ".join(
            f"{arrow} {sides[name]['r1']:.1f} / {sides[name]['r5']:.1f} / {sides[name]['r10']:.1f}"
            for arrow, name in (("t→v", "text_to_video"), ("v→t", "video_to_text"))
        )
        self.console.print(f"after epoch {record['epoch']}, validation R@1/5/10: {both}")
        if self.board is not None:
            for side, metrics in sides.items():
                for name, value in metrics.items():
                    self.board.add_scalar(f"validation/{side}/{name}", value, record["step"])


def _tensorboard(run: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"))
