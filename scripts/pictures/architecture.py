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
            ("Kubernetes", "plain pods", "pod IP, exec"),
            ("Kubernetes", "agent-sandbox", "pod IP, exec"),
        )
    ):
        y = 44 + i * 106
        p.box(588, y, 256, 96)
        p.text(600, y + 22, name, bold=True, size=12)
        p.text(832, y + 22, detail, "end", 12, "muted")
        p.box(600, y + 36, 112, 46, "amber")
        p.text(656, y + 56, "agent", "middle", bold=True)
        p.text(656, y + 73, "output, files", "middle", 11, "muted")
        p.box(748, y + 36, 84, 46, "ground")
        p.text(790, y + 64, "commands", "middle", 12)
        p.line(712, y + 59, 745, y + 59, arrow=True)
        p.line(464, y + 59, 597, y + 59, "strong", arrow=True)
        p.text(526, y + 50, way, "middle", 11, "muted")
    p.text(
        430,
        378,
        "The server holds one gRPC connection to the agent in each sandbox in use.",
        "middle",
        12,
        "muted",
    )
    return p
