"""The states of a sandbox."""

from svg import Picture


def picture() -> Picture:
    p = Picture(860, 310, "The states of a sandbox and what changes them")

    def state(x: int, y: int, name: str, detail: str, fill: str) -> None:
        p.box(x, y, 160, 60, fill)
        p.text(x + 80, y + 26, name, "middle", bold=True)
        p.text(x + 80, y + 45, detail, "middle", 12, "muted")

    state(40, 110, "CREATING", "no command yet", "blue")
    state(350, 110, "ACTIVE", "commands run", "green")
    state(350, 16, "SUSPENDED", "disk kept", "panel")
    state(350, 224, "FAILED", "message has the cause", "red")
    state(660, 110, "DELETING", "then NOT_FOUND", "panel")

    p.line(200, 132, 346, 132, "strong", arrow=True)
    p.text(273, 125, "the agent answers", "middle", 12)
    p.line(350, 154, 204, 154, arrow=True, dashed=True)
    p.text(275, 172, "pod recreated:", "middle", 12, "muted")
    p.text(275, 187, "another incarnation", "middle", 12, "muted")
    p.line(408, 110, 408, 80, arrow=True)
    p.text(400, 99, "SuspendSandbox", "end", 12)
    p.line(452, 76, 452, 106, arrow=True)
    p.text(460, 99, "ResumeSandbox", "start", 12)
    p.line(430, 170, 430, 220, "alarm", arrow=True)
    p.text(438, 194, "the container ended:", "start", 12)
    p.text(438, 210, "out of memory, killed", "start", 12)
    p.path("M120 170V254H346", "alarm", arrow=True)
    p.text(132, 246, "creation fails", "start", 12)
    p.line(510, 140, 656, 140, "strong", arrow=True)
    p.text(583, 126, "DeleteSandbox,", "middle", 12)
    p.text(583, 158, "ttl, idle_ttl", "middle", 12)
    p.path("M510 46H740V106", arrow=True)
    p.text(625, 38, "DeleteSandbox, ttl, idle_ttl", "middle", 12)
    p.path("M510 254H740V174", arrow=True)
    p.text(625, 272, "DeleteSandbox, ttl, idle_ttl", "middle", 12)
    return p
