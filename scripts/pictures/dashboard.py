"""The dashboard of the chart with the data of a busy server, from dashboard.json beside this file.

`go test ./test/monitoring -run TestRecordDashboard -record $PWD/scripts/pictures/dashboard.json`
writes that file: what a real Prometheus answered to the queries of the panels. The picture shows
titles, units, legends and positions as they are in the dashboard; Grafana draws them otherwise.
"""

import json
from pathlib import Path

from svg import Picture

DATA = Path(__file__).resolve().parent / "dashboard.json"
COLUMN, ROW, TOP = 46, 26, 40
COLOURS = ("strong", "alarm", "good", "line", "muted", "peer")
LEGENDS = 5
PREFIXES = (("G", 1e9), ("M", 1e6), ("k", 1e3))
SUFFIXES = {"reqps": "/s", "ops": "/s", "cps": "/s", "Bps": "B/s", "bytes": "B", "s": "s"}


def number(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.0f} %"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
    prefix, factor = next((at for at in PREFIXES if abs(value) >= at[1]), ("", 1.0))
    return f"{value / factor:.3g} {prefix}{SUFFIXES.get(unit, '')}".strip()


def stat(p: Picture, panel: dict, x: float, y: float, width: float, height: float) -> None:
    values = [v for v in panel["Series"][0]["Values"] if v is not None]
    text = number(values[-1], panel["Unit"]) if values else "no data"
    text = panel.get("Texts", {}).get(text, text)
    p.text(x + width / 2, y + height / 2 + 18, text, "middle", 26, "good")


def curves(p: Picture, panel: dict, x: float, y: float, width: float, height: float) -> None:
    series = panel["Series"]
    highest = max((v for one in series for v in one["Values"] if v is not None), default=0) or 1
    left, right, upper = x + 12, x + width - 12, y + 32
    lower = y + height - 18 - 13 * ((min(len(series), LEGENDS) + 1) // 2)
    p.text(right, upper - 2, number(highest, panel["Unit"]), "end", 10, "muted")
    p.line(left, lower, right, lower)
    for i, one in enumerate(series):
        d, pen = "", "M"
        for at, value in enumerate(one["Values"]):
            if value is None:
                pen = "M"
                continue
            place = left + at / max(1, len(one["Values"]) - 1) * (right - left)
            d += f"{pen}{place:.1f} {lower - value / highest * (lower - upper - 4):.1f}"
            pen = "L"
        if d:
            p.path(d, COLOURS[i % len(COLOURS)])
    for i, one in enumerate(series[:LEGENDS]):
        place = left + i % 2 * (width - 24) / 2
        below = lower + 14 + i // 2 * 13
        p.bar(place, below - 7, 8, 7, COLOURS[i % len(COLOURS)])
        more = f" and {len(series) - LEGENDS} more" if i == LEGENDS - 1 and len(series) > LEGENDS else ""
        p.text(place + 12, below, (one["Name"][:24] or "(no name)") + more, size=10, fill="muted")


def picture() -> Picture:
    panels = json.loads(DATA.read_text(encoding="utf-8"))
    height = max(panel["Y"] + panel["H"] for panel in panels) * ROW + TOP + 12
    p = Picture(24 * COLUMN + 24, height, "The dashboard of the chart with the data of a busy server")
    p.text(12, 26, "Sandgate", size=16, bold=True)
    for panel in panels:
        x, y = 12 + panel["X"] * COLUMN, TOP + panel["Y"] * ROW
        width, tall = panel["W"] * COLUMN - 6, panel["H"] * ROW - 6
        if panel["Type"] == "row":
            p.text(x, y + 18, panel["Title"], size=14, bold=True)
            continue
        p.box(x, y, width, tall)
        p.text(x + 10, y + 18, panel["Title"], size=12, bold=True)
        (stat if panel["Type"] == "stat" else curves)(p, panel, x, y, width, tall)
    return p
