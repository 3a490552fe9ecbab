"""How a connection leaves a sandbox with the network mode PROXY."""

from svg import Picture


def picture() -> Picture:
    p = Picture(860, 350, "Connections of a sandbox with the network mode proxy go through agent and server")
    p.text(170, 28, "sandbox: no route out", "middle", bold=True)
    p.box(16, 44, 308, 250)
    for i, (name, detail) in enumerate(
        (
            ("pip, npm, curl", "by the proxy's variables"),
            ("ssh, psql, others", "by a name's address"),
            ("an address of a rule", "by a local route"),
        )
    ):
        y = 60 + i * 72
        p.box(28, y, 148, 52, "ground")
        p.text(102, y + 22, name, "middle", 12, bold=True)
        p.text(102, y + 40, detail, "middle", 11, "muted")
        p.line(176, y + 26, 213, y + 26, arrow=True)
    p.box(216, 60, 96, 196, "amber")
    p.text(264, 130, "agent", "middle", bold=True)
    p.lines(264, 154, ["proxy", "name server", "listeners"], 18, anchor="middle", size=12, fill="muted")
    p.line(102, 294, 102, 318, "alarm")
    p.path("M94 310L110 326M110 310L94 326", "alarm")
    p.text(120, 324, "anything else: unreachable, at once", size=12, fill="alarm")

    p.line(312, 158, 401, 158, "strong", arrow=True)
    p.text(357, 146, "one stream", "middle", 11, "muted")

    p.text(500, 28, "server", "middle", bold=True)
    p.box(404, 44, 192, 250, "green")
    p.lines(
        500,
        72,
        [
            "1  rules of template, sandbox",
            "2  resolves the asked name",
            "3  checks the address",
            "4  connects to that address",
            "5  compares the first bytes",
        ],
        26,
        anchor="middle",
        size=12,
    )
    p.line(424, 200, 576, 200)
    p.lines(
        500,
        222,
        ["only where a rule needs it:", "ends TLS, checks requests,", "puts a secret into them"],
        20,
        anchor="middle",
        size=12,
        fill="muted",
    )

    p.text(760, 28, "outside", "middle", bold=True)
    p.box(676, 60, 168, 52, "blue")
    p.text(760, 92, "an allowed host", "middle", 12)
    p.line(596, 120, 673, 88, "good", arrow=True)
    p.box(676, 142, 168, 52, "red")
    p.lines(760, 164, ["other hosts, private and", "metadata addresses"], 18, anchor="middle", size=12)
    p.line(596, 168, 640, 168, "alarm")
    p.path("M636 160L652 176M652 160L636 176", "alarm")
    p.lines(
        760,
        226,
        ["A denial reaches the program,", "the end of the command,", "the audit log and a metric."],
        18,
        anchor="middle",
        size=12,
        fill="muted",
    )
    return p
