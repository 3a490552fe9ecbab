"""What server and sandboxes held during `make soak`, from soak.csv beside this file.

`make soak SOAK_FLAGS='-samples scripts/pictures/soak.csv'` writes that file.
"""

import csv
from itertools import pairwise
from pathlib import Path

from svg import Picture

SAMPLES = Path(__file__).resolve().parent / "soak.csv"
MIB = 1 << 20
# Column, title and divisor.
GAUGES = (
    ("server_rss", "server, resident MiB", MIB),
    ("server_descriptors", "server, descriptors", 1),
    ("server_goroutines", "server, goroutines", 1),
    ("agents_rss", "agents, resident MiB", MIB),
    ("processes", "processes", 1),
    ("cgroups", "cgroups", 1),
    ("mounts", "mounts", 1),
    ("loops", "loop devices", 1),
    ("files", "files of the state", 1),
)
COLUMNS, WIDTH, HEIGHT = 3, 240, 90


def picture() -> Picture:
    with SAMPLES.open(encoding="utf-8") as file:
        samples = list(csv.DictReader(file))
    seconds = [float(s["seconds"]) for s in samples]
    kills = [
        float(after["seconds"]) for before, after in pairwise(samples) if before["life"] != after["life"]
    ]
    p = Picture(
        860,
        70 + 3 * (HEIGHT + 50),
        "What server and sandboxes held under a steady load with a kill of the server",
    )
    p.text(
        20,
        28,
        f"{seconds[-1]:.0f} s of steady load; scales begin at 0; dashed: the server is killed and restarted",
        bold=True,
    )
    for i, (column, title, divisor) in enumerate(GAUGES):
        left, top = 30 + i % COLUMNS * (WIDTH + 40), 76 + i // COLUMNS * (HEIGHT + 50)
        values = [float(s[column]) / divisor for s in samples]
        highest = max(values) or 1
        p.text(left, top - 10, title)
        p.text(left + WIDTH, top - 10, f"max {max(values):.0f}", "end", 11, "muted")
        p.box(left, top, WIDTH, HEIGHT)
        points = [
            f"{left + second / seconds[-1] * WIDTH:.1f} {top + HEIGHT - value / highest * (HEIGHT - 8):.1f}"
            for second, value in zip(seconds, values, strict=True)
        ]
        p.path("M" + "L".join(points), "strong")
        for kill in kills:
            x = round(left + kill / seconds[-1] * WIDTH, 1)
            p.line(x, top, x, top + HEIGHT, "alarm", dashed=True)
    return p
