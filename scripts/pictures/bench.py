"""Bars of `make bench-kubernetes` beside the peers, from the tables of docs/performance.md."""

import re
from pathlib import Path

from svg import Picture

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
SHOWN = ("execute true", "read 100 lines", "grep in 20 files", "download 64 KiB", "create → first command")
PEERS = (
    ("langchain-kubernetes, raw pods", "plain pods", "langchain-kubernetes 0.4.0"),
    ("langchain-k8s", "agent-sandbox, Python", "langchain-k8s 0.7.1"),
    ("langchain-k8s with sandboxd", "agent-sandbox, sandboxd", "langchain-k8s 0.7.1"),
)
OURS = "pod-ip"


def table(text: str, peer: str) -> dict[str, tuple[float, float]]:
    """Row to milliseconds of the peer and of Sandgate."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| from Python | {peer} |"))
    header = [cell.strip() for cell in lines[start].strip("|").split("|")]
    column = next(i for i, cell in enumerate(header) if OURS in cell)
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        times = [re.fullmatch(r"([\d.]+) ms", cells[i]) for i in (1, column)]
        if times[0] and times[1]:
            found[cells[0]] = (float(times[0][1]), float(times[1][1]))
    return found


def picture() -> Picture:
    text = PAGE.read_text(encoding="utf-8")
    step, panel = 40, 40 + 40 * len(SHOWN)
    p = Picture(
        860, 40 + panel * len(PEERS) + 20, "Milliseconds of one call from Python, Sandgate beside its peers"
    )
    p.text(20, 28, "milliseconds per call from Python, p50; shorter is better", bold=True)
    y = 60
    for peer, pods, name in PEERS:
        rows = table(text, peer)
        shown = [row for row in SHOWN if row in rows]
        p.text(20, y, pods, bold=True)
        p.bar(250, y - 10, 12, 12, "strong")
        p.text(268, y, f"Sandgate by {OURS}", size=12)
        p.bar(420, y - 10, 12, 12, "peer")
        p.text(438, y, name, size=12)
        longest = max(max(rows[row]) for row in shown)
        for i, row in enumerate(shown):
            top = y + 14 + i * step
            p.text(236, top + 19, row, "end")
            theirs, ours = rows[row]
            for value, fill, offset in ((ours, "strong", 0), (theirs, "peer", 15)):
                p.bar(250, top + offset, max(2, value / longest * 520), 12, fill)
                p.text(258 + value / longest * 520, top + offset + 10, f"{value:.1f}", size=11)
        y += panel
    return p
