"""Live displays on standard error: the progress of long work, and the frames of `--watch`.

A display never fails or slows the work it shows. A separate thread polls a snapshot and draws it. If drawing fails, the
display disappears and the work continues. Everything else that is printed appears above the display, never inside it.
There is no animation when standard error is not a terminal, or when TERM is `dumb` or not set.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Self, TextIO, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from runstate.cli.output import words

T = TypeVar("T")
_refresh_s = 0.125
_first_s = 0.25
"""Work that ends sooner than this is not worth a display."""
_share_max = 0.05
"""Of the time that passes, a display uses at most this share for drawing."""
_join_s = 1.0
"""How long to wait for a display that is blocked, by a terminal that was paused with Ctrl-S for instance."""
_bar_cells = 24
_bar_needs_cells = 60
_erase = b"\r\x1b[J"
"""Erases the display, however many lines it has: the cursor always rests at its first cell."""


def can_animate() -> bool:
    """Whether standard error is a terminal that can redraw a line."""
    is_able = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return is_able and sys.stderr is not None and sys.stderr.isatty()


def erase_leftover() -> None:
    """Remove the display of a process that was killed while it shared this terminal."""
    if can_animate():
        sys.stderr.write(_erase.decode())
        sys.stderr.flush()


class Display:
    """Draws what `snapshot` returns again and again, until the block ends.

    The cursor is never hidden, so that no way to end the process can leave it hidden.
    """

    def __init__(self, snapshot: Callable[[], RenderableType]) -> None:
        self._snapshot = snapshot
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runstate-display", daemon=True)
        self._streams = sys.stdout, sys.stderr
        self._lock = threading.Lock()
        self._is_drawn = self._is_line_open = False
        self._relay: _Relay | None = None

    @property
    def is_open(self) -> bool:
        return self._thread.ident is not None and not self._over.is_set()

    def __enter__(self) -> Self:
        if self._is_possible():
            atexit.register(self.close)  # A generator that was left by an exception may still be open by then.
            stdout, stderr = self._streams
            if stdout.isatty():
                stdout.flush()
                sys.stdout = _Above(stdout, self._write)
            sys.stderr = _Above(stderr, self._write)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Erase the display for good. Calling it again does nothing."""
        if not self.is_open:
            return
        self._over.set()
        self._thread.join(_join_s)
        if self._relay is not None:
            self._relay.close()
        atexit.unregister(self.close)
        sys.stdout, sys.stderr = self._streams
        if self._is_drawn:
            with suppress(OSError):
                self._print("")

    def relay(self) -> int:
        """A file descriptor that other processes may print to. Each line they complete appears above the display."""
        if not self.is_open:
            return 2
        if self._relay is None:
            self._relay = _Relay(self._print)
        return self._relay.target

    def _is_possible(self) -> bool:
        return can_animate()

    def _run(self) -> None:
        pause_s = _first_s
        try:
            while not self._over.wait(pause_s):
                started = time.monotonic()
                self._draw()
                pause_s = max(_refresh_s, (time.monotonic() - started) / _share_max)
        except Exception as error:  # noqa: BLE001 - whatever it is, the work goes on
            with suppress(Exception):
                self._print(f"the progress display failed and is off; the work continues ({error!r:.200})\n")

    def _draw(self) -> None:
        with words.capture() as captured:
            words.print(self._snapshot(), width=max(1, words.width - 1), soft_wrap=False, no_wrap=True, overflow="crop")
        lines = captured.get().rstrip("\n").split("\n")
        rows = max(1, words.height - 1)
        if len(lines) > rows:
            lines = [*lines[: rows - 1], f"({len(lines) - rows + 1} more lines)"]
        up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        self._write(self._streams[1].buffer, self._encoded("\n".join(lines) + up + "\r"), is_display=True)

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._streams[1].encoding, "backslashreplace")

    def _print(self, line: str) -> None:
        self._write(self._streams[1].buffer, self._encoded(line))

    def _write(self, stream: BinaryIO, data: bytes, *, is_display: bool = False) -> None:
        """Erase the display and write to the terminal, in one step. No display is drawn behind an unfinished line."""
        with self._lock:
            if is_display and self._is_line_open:
                return
            stream.write(_erase + data if self._is_drawn else data)
            stream.flush()
            self._is_drawn, self._is_line_open = is_display, not is_display and not data.endswith(b"\n")


class _Above:
    """Takes the place of standard output and standard error while a display is open: what they get is put above it."""

    def __init__(self, stream: TextIO, write: Callable[[BinaryIO, bytes], None]) -> None:
        self._stream, self._write = stream, write

    @property
    def buffer(self) -> _Above:
        return self

    def write(self, data: str | bytes) -> int:
        text = data.encode(self._stream.encoding, self._stream.errors or "strict") if isinstance(data, str) else data
        if text:
            self._write(self._stream.buffer, text)
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Relay:
    """A pipe of which every line is passed on by a thread."""

    def __init__(self, pass_on: Callable[[str], None]) -> None:
        source, self.target = os.pipe()
        self._thread = threading.Thread(target=self._run, args=(source, pass_on), name="runstate-relay", daemon=True)
        self._thread.start()

    def _run(self, source: int, pass_on: Callable[[str], None]) -> None:
        with os.fdopen(source, errors="backslashreplace", newline="\n") as lines:
            for line in lines:
                with suppress(OSError):
                    pass_on(line if line.endswith("\n") else f"{line}\n")

    def close(self) -> None:
        os.close(self.target)
        self._thread.join(_join_s)


# --- progress --------------------------------------------------------------------------------------------------------


class Progress:
    """How far some work is. The work sets the attributes, a display reads them."""

    def __init__(self, doing: str, total: int | None = None, unit: str = "") -> None:
        self.doing, self.done, self.total, self.unit = doing, 0, total, unit
        self.started = time.monotonic()

    def advance(self, by: int = 1) -> None:
        self.done += by

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        done, total = self.done, self.total
        figures = "" if not done and not total else f"  {done}/{total}" if total else f"  {done}"
        rest = Text(f"{figures}{f' {self.unit}' if figures and self.unit else ''}  {_duration(self.started)}")
        if total and options.max_width >= _bar_needs_cells:
            rest = Text.assemble("  ", *_bar(done / total), rest)
        line = Text(self.doing, no_wrap=True)
        line.truncate(max(1, options.max_width - rest.cell_len))
        yield line.append(rest)


def _bar(ratio: float) -> Iterator[tuple[str, str]]:
    filled = round(_bar_cells * min(1.0, ratio))
    is_unicode = (sys.stderr.encoding or "").lower().startswith("utf")
    full, empty = ("━", "─") if is_unicode else ("#", "-")
    yield full * filled, "green"
    yield empty * (_bar_cells - filled), "dim"


def _duration(started: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


@contextmanager
def showing(doing: str, total: int | None = None, unit: str = "") -> Iterator[Progress]:
    """Display the progress of the block, which keeps the returned `Progress` current."""
    progress = Progress(doing, total, unit)
    with Display(lambda: progress):
        yield progress


def track(items: Iterable[T], doing: str, total: int | None = None) -> Iterator[T]:
    """The items, with a display of how many have been handled."""
    with showing(doing, total) as progress:
        for item in items:
            yield item
            progress.advance()


# --- frames ----------------------------------------------------------------------------------------------------------


class Watch(Display):
    """The display of a `--watch`. What is printed in `frame()` replaces the frame before.

    Where standard output or standard error is not a terminal, frames are printed one after the other.
    """

    def __init__(self) -> None:
        self._frame = Text()
        super().__init__(lambda: self._frame)

    @contextmanager
    def frame(self) -> Iterator[None]:
        if not self.is_open:
            yield
            sys.stdout.flush()
            return
        stdout, stderr, captured = sys.stdout, sys.stderr, _Frame(sys.stdout.encoding)
        sys.stdout = sys.stderr = captured
        try:
            yield
        finally:
            sys.stdout, sys.stderr = stdout, stderr
        self._frame = Text.from_ansi(captured.text)

    def _is_possible(self) -> bool:
        return can_animate() and sys.stdout.isatty()


class _Frame(io.TextIOWrapper):
    """A terminal that keeps what is written to it."""

    def __init__(self, encoding: str) -> None:
        self._kept = io.BytesIO()
        super().__init__(self._kept, encoding=encoding, errors="backslashreplace", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return self._kept.getvalue().decode(self.encoding, "replace")
