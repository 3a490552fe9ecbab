"""How the parts fit: clients, server, sandboxes."""

from svg import Picture


def picture() -> Picture:
    p = Picture(
        860,
        390,
        "Clients call one Sandgate server over gRPC; the server reaches the agent inside each sandbox",
    )
    p.text(95, 28, "clients", "middle", bold=True)
    for i, (name, detail) in enumerate(
        (
            ("Python", "deepagents, LangGraph"),
            ("TypeScript", "deepagents, LangGraph"),
            ("Go", "the command line"),
            ("any gRPC client", "grpcurl, own stubs"),
        )
    ):
        y = 44 + i * 82
        p.box(16, y, 158, 62, "blue")
        p.text(95, y + 27, name, "middle", bold=True)
        p.text(95, y + 46, detail, "middle", 12, "muted")
        p.line(174, y + 31, 276, 199, "strong", arrow=True)
    p.text(226, 28, "gRPC, TLS", "middle", 12, "muted")

    p.text(372, 28, "sandgate serve", "middle", bold=True)
    p.box(280, 44, 184, 308, "green")
    p.lines(
        372,
        80,
        ["authentication", "tenants, templates", "policy, quotas", "audit log, metrics"],
        24,
        anchor="middle",
    )
    p.line(304, 176, 440, 176)
    p.lines(372, 204, ["creation, pools", "lifetimes, cleanup", "resume after a break"], 24, anchor="middle")
    p.line(304, 276, 440, 276)
    p.lines(
        372,
        302,
        ["keeps no state:", "any replica serves", "any sandbox"],
        18,
        anchor="middle",
        size=12,
        fill="muted",
    )

    p.text(684, 28, "sandboxes", "middle", bold=True)
    for i, (name, detail, way) in enumerate(
        (
            ("this machine", "runc or gVisor", "unix socket, exec"),
            ("Docker", "containers", "unix socket, exec"),
            ("Kubernetes", "plain pods", "pod IP, exec"),
            ("Kubernetes", "agent-sandbox", "pod IP, exec"),
        )
    ):
        y = 44 + i * 79
        p.box(588, y, 256, 71)
        p.text(600, y + 17, name, bold=True, size=12)
        p.text(832, y + 17, detail, "end", 12, "muted")
        p.box(600, y + 25, 112, 40, "amber")
        p.text(656, y + 42, "agent", "middle", bold=True)
        p.text(656, y + 58, "output, files", "middle", 11, "muted")
        p.box(748, y + 25, 84, 40, "ground")
        p.text(790, y + 49, "commands", "middle", 12)
        p.line(712, y + 45, 745, y + 45, arrow=True)
        p.line(464, y + 45, 597, y + 45, "strong", arrow=True)
        p.text(526, y + 36, way, "middle", 11, "muted")
    p.text(
        430,
        378,
        "The server holds one gRPC connection to the agent in each sandbox in use.",
        "middle",
        12,
        "muted",
    )
    return p
