"""Which protection each substrate enforces."""

from svg import Picture

COLUMNS = ("runc", "gVisor", "pods")
# The text of a cell; a leading ! means that it is not enforced, ~ that it depends
# on the cluster or the node's kernel. docs/security.md has the details and the tests.
ROWS = (
    ("no way out to the host", "namespaces, seccomp", "a kernel of its own", "restricted standard"),
    ("no network by default", "network namespace", "loopback only", "~NetworkPolicy, by the CNI"),
    ("no root, no capabilities", "a user per sandbox", "a user per sandbox", "restricted standard"),
    ("read-only system", "overlay", "overlay", "read-only root"),
    ("memory and CPU", "cgroup", "cgroup", "pod limits"),
    ("processes", "cgroup", "rlimit, cgroup", "~kubelet's pod limit"),
    ("disk", "disk image", "disk image", "~eviction, in minutes"),
    ("all descendants die", "cgroup per command", "!subreaper, sweep", "!subreaper, sweep"),
    ("commands kept from the agent", "~Landlock", "!no Landlock", "~Landlock"),
    ("write prefixes of commands", "~Landlock", "!no Landlock", "~Landlock"),
)


def picture() -> Picture:
    p = Picture(860, 86 + 30 * len(ROWS) + 40, "Protections by substrate, and what enforces each of them")
    left, width, top = 250, 196, 50
    for i, column in enumerate(COLUMNS):
        p.text(left + i * width + width / 2 - 4, 32, column, "middle", 14, bold=True)
    for i, (name, *cells) in enumerate(ROWS):
        y = top + i * 30
        p.text(20, y + 18, name)
        for j, cell in enumerate(cells):
            fill = {"!": "red", "~": "amber"}.get(cell[0], "green")
            p.box(left + j * width, y, width - 8, 26, fill)
            p.text(left + j * width + (width - 8) / 2, y + 17, cell.lstrip("!~"), "middle", 12)
    y = top + 30 * len(ROWS) + 26
    legend = (
        ("green", "enforced"),
        ("amber", "depends on kernel or cluster"),
        ("red", "not enforced against intent"),
    )
    for fill, text, x in zip(*zip(*legend, strict=True), (250, 352, 560), strict=True):
        p.box(x, y - 12, 14, 14, fill)
        p.text(x + 22, y, text, size=12)
    p.text(
        20,
        y + 30,
        "The server reports in `sandgate info` what it could not enforce; --require-limits refuses to serve.",
        size=12,
        fill="muted",
    )
    return p
