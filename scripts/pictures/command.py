"""The life of a command whose connection is cut."""

from svg import Picture

LANES = {"client": 90, "server": 320, "agent": 550, "command": 760}


def picture() -> Picture:
    p = Picture(860, 560, "A client loses its connection during a command and resumes without losing a byte")
    for name, x in LANES.items():
        p.box(x - 60, 16, 120, 34, "blue" if name == "client" else "green" if name == "server" else "amber")
        p.text(x, 38, name, "middle", bold=True)
        p.line(x, 50, x, 530, dashed=True)

    def call(y: int, start: str, end: str, text: str, stroke: str = "line") -> None:
        a, b = LANES[start], LANES[end]
        sign = 1 if b > a else -1
        p.line(a + 4 * sign, y, b - 4 * sign, y, stroke, arrow=True)
        p.text((a + b) / 2, y - 6, text, "middle", 12, "text" if stroke == "line" else stroke)

    call(84, "client", "server", "Execute(exec_id)")
    call(104, "server", "agent", "Execute")
    call(124, "agent", "command", "clone, exec")
    call(156, "command", "agent", "output")
    call(176, "agent", "server", "started, position 0 …")
    call(196, "server", "client", "started, position 0 …")

    # The cut.
    p.line(94, 240, 190, 240, "alarm")
    p.line(220, 240, 316, 240, "alarm")
    p.path("M196 230L214 250M214 230L196 250", "alarm")
    p.text(205, 222, "connection cut", "middle", 12, "alarm", bold=True)
    call(240, "command", "agent", "output")
    p.text(436, 226, "retained by position,", "middle", 12, "muted")
    p.text(436, 242, "in memory, then on disk", "middle", 12, "muted")
    call(278, "server", "agent", "the subscription ends")
    p.text(562, 296, "disconnect_grace runs:", "start", 12, "muted")
    p.text(562, 312, "the command goes on", "start", 12, "muted")
    call(346, "command", "agent", "output")

    call(376, "client", "server", "Attach(exec_id, position)", "good")
    call(396, "server", "agent", "Attach", "good")
    call(428, "agent", "server", "what was missed, then live", "good")
    call(448, "server", "client", "what was missed, then live", "good")
    call(480, "command", "agent", "exit")
    call(500, "agent", "server", "exited: EXITED, code 0")
    call(520, "server", "client", "exited: EXITED, code 0")
    p.text(
        430,
        550,
        "A server that is killed, or its connection to the agent, is a cut like this one.",
        "middle",
        12,
        "muted",
    )
    return p
