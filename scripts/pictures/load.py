"""Bars of `make load`, from its tables in docs/performance.md."""

import re
from pathlib import Path

from svg import Picture

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
PROVIDERS = ("fake", "local")


def table(text: str, provider: str) -> tuple[str, dict[str, tuple[float, float]]]:
    """The title, and call to milliseconds of p50 and p99."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if re.match(rf"\| {provider}: .*\| calls \|", line))
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, _, p50, p99, _ = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = (float(p50.removesuffix(" ms")), float(p99.removesuffix(" ms")))
    return lines[start].split("|")[1].strip(), found


def picture() -> Picture:
    text = PAGE.read_text(encoding="utf-8")
    tables = [table(text, provider) for provider in PROVIDERS]
    step = 34
    p = Picture(
        860,
        60 + sum(44 + step * len(rows) for _, rows in tables),
        "Milliseconds of each call under mixed load, p50 and p99, with the fake and the local provider",
    )
    p.text(20, 28, "milliseconds per call under mixed load; shorter is better", bold=True)
    for x, fill, name in ((480, "strong", "p50"), (560, "peer", "p99")):
        p.bar(x, 18, 12, 12, fill)
        p.text(x + 18, 28, name, size=12)
    y = 66
    for title, rows in tables:
        p.text(20, y, title, bold=True)
        longest = max(max(times) for times in rows.values())
        for i, (name, times) in enumerate(rows.items()):
            top = y + 14 + i * step
            p.text(236, top + 18, name, "end")
            for value, fill, offset in ((times[0], "strong", 0), (times[1], "peer", 14)):
                p.bar(250, top + offset, max(2, value / longest * 520), 12, fill)
                p.text(258 + value / longest * 520, top + offset + 10, f"{value:.1f}", size=11)
        y += 44 + step * len(rows)
    return p
