"""Record how a durable function survives `kill -9`, as an animated picture: `python -m docs.recording [FILE]`.

Runs `docs/snippets/survive.py` in real processes, kills the first one while it ships, and starts it again. The picture shows
what a terminal shows, at the pace of the session, in the colors of the reader's theme. It is an SVG without scripts.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "docs/snippets/survive.py"
PICTURE = ROOT / "docs/images/survive.svg"
COMMAND = "python orders.py"
KILL_AT = "shipping"
"""The process is killed when it has printed a line that begins with this."""

MAX_PAUSE = 2.5
"""Seconds: longer pauses of a slow machine are shortened."""
HOLD_FOR = 5.0
"""Seconds for which the end is shown before the session begins again."""
COLUMNS = 70
LINE_HEIGHT, LEFT, TOP, WIDTH = 22, 20, 58, 640

STYLE = """
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f; white-space: pre }
  .frame { fill: #f6f8fa; stroke: #d0d7de } .command { fill: #0f766e; font-weight: 600 } .kill { fill: #cf222e; font-weight: 600 }
  .bar { fill: #d0d7de }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .frame { fill: #161b22; stroke: #30363d } .command { fill: #5eead4 } .kill { fill: #ff7b72 }
    .bar { fill: #30363d }
  }
"""


@dataclass(frozen=True)
class Line:
    """A line of the terminal: the seconds since the line before, its class in the picture, and its text."""

    pause: float
    kind: str
    text: str


async def _run(folder: Path, kill_at: str | None) -> list[Line]:
    """Run the program in the folder, to its end or until it is killed; return its lines."""
    loop, lines = asyncio.get_running_loop(), [Line(1, "command", f"$ {COMMAND}")]
    last_at = loop.time()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "orders.py",
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout
    async for raw in process.stdout:
        now, text = loop.time(), raw.decode().rstrip()
        lines.append(Line(now - last_at, "output", text))
        last_at = now
        if kill_at and text.startswith(kill_at):
            await asyncio.sleep(1)  # the step is at work, as a viewer can see
            process.kill()
            lines += [Line(1, "kill", f"# elsewhere: kill -9 {process.pid}"), Line(0.2, "output", "Killed")]
            break
    if await process.wait() != (-9 if kill_at else 0):
        raise RuntimeError("\n".join(line.text for line in lines))
    return lines


async def record(folder: Path) -> list[Line]:
    """Play the session in an empty folder and return what it showed."""
    shutil.copy(PROGRAM, folder / "orders.py")
    return [*await _run(folder, KILL_AT), *await _run(folder, None)]


def shorten(text: str) -> str:
    """The text as far as it fits into the terminal."""
    return text if len(text) <= COLUMNS else f"{text[: COLUMNS - 1]}…"


def picture(lines: Sequence[Line]) -> str:
    """The session as an SVG: each line appears at its time; without animation, for readers who want none, all are shown."""
    times, at = list[float](), 0.0
    for line in lines:
        at += min(line.pause, MAX_PAUSE)
        times.append(at)
    total, height = at + HOLD_FOR, TOP + LINE_HEIGHT * len(lines)
    rules, texts = list[str](), list[str]()
    for number, (line, shown_at) in enumerate(zip(lines, times, strict=True)):
        percent = 100 * shown_at / total
        rules.append(f"@keyframes l{number} {{ 0%, {percent:.2f}% {{ opacity: 0 }} {percent + 0.01:.2f}%, 100% {{ opacity: 1 }} }}")
        texts.append(
            f'<text class="{line.kind}" x="{LEFT}" y="{TOP + LINE_HEIGHT * number}" '
            f'style="animation-name: l{number}">{escape(shorten(line.text))}</text>'
        )
    animation = f"@media (prefers-reduced-motion: no-preference) {{ text {{ animation: {total:.1f}s linear infinite }} }}"
    dots = "".join(f'<circle class="bar" cx="{LEFT + 5 + 18 * n}" cy="20" r="6"/>' for n in range(3))
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
            "<title>A durable function is killed with kill -9, started again, and continues after its last step</title>",
            f"<style>{STYLE}{animation}\n" + "\n".join(rules) + "\n</style>",
            f'<rect class="frame" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>{dots}',
            *texts,
            "</svg>\n",
        )
    )


def main() -> None:
    """Record the session and write the picture."""
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with TemporaryDirectory() as folder:
        lines = asyncio.run(record(Path(folder)))
    place.write_text(picture(lines), "utf-8")


if __name__ == "__main__":
    main()
