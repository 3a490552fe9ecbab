"""Drawing for the pictures of the documentation: SVG text, legible in light and dark."""

from __future__ import annotations

from xml.sax.saxutils import escape

# Name to the colours of the light and of the dark scheme.
COLOURS = {
    "ground": ("#ffffff", "#0d1117"),
    "text": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9198a1"),
    "line": ("#818b98", "#6e7681"),
    "panel": ("#f6f8fa", "#161b22"),
    "blue": ("#ddf4ff", "#0c2d6b"),
    "green": ("#dafbe1", "#033a16"),
    "amber": ("#fff8c5", "#4b2900"),
    "red": ("#ffebe9", "#67060c"),
    "strong": ("#0969da", "#4493f8"),
    "alarm": ("#cf222e", "#f85149"),
    "good": ("#1a7f37", "#3fb950"),
    "peer": ("#afb8c1", "#57606a"),
}


class Picture:
    """Collects shapes and writes them as one SVG file."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._shapes: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, fill: str = "panel", dashed: bool = False
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._shapes.append(
            f'<rect class="f-{fill} s-line" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"{dash}/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self._shapes.append(
            f'<rect class="f-{fill}" x="{x}" y="{y}" width="{width:.1f}" height="{height}" rx="2"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "start",
        size: int = 13,
        fill: str = "text",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text class="f-{fill}" x="{x}" y="{y}" text-anchor="{anchor}" '
            f'font-size="{size}"{weight}>{escape(text)}</text>'
        )

    def lines(self, x: float, y: float, texts: list[str], step: int = 18, **style: object) -> None:
        for i, text in enumerate(texts):
            self.text(x, y + i * step, text, **style)  # type: ignore[arg-type]

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        stroke: str = "line",
        arrow: bool = False,
        dashed: bool = False,
    ) -> None:
        self.path(f"M{x1} {y1}L{x2} {y2}", stroke, arrow, dashed)

    def path(self, d: str, stroke: str = "line", arrow: bool = False, dashed: bool = False) -> None:
        head = f' marker-end="url(#{stroke})"' if arrow else ""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._shapes.append(f'<path class="s-{stroke}" d="{d}" fill="none" stroke-width="1.5"{head}{dash}/>')

    def render(self) -> str:
        width, height = self._size
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path class="f-{name}" d="M0 0L10 5L0 10z"/></marker>'
            for name in ("line", "strong", "alarm", "good")
        )
        light = "".join(self._rules(0))
        dark = "".join(self._rules(1))
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}" role="img" '
                'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
                f"<title>{escape(self._title)}</title>",
                f"<style>{light}@media (prefers-color-scheme: dark){{{dark}}}</style>",
                f"<defs>{heads}</defs>",
                f'<rect class="f-ground" width="{width}" height="{height}" rx="8"/>',
                *self._shapes,
                "</svg>",
                "",
            ]
        )

    @staticmethod
    def _rules(scheme: int) -> list[str]:
        return [
            f".f-{name}{{fill:{colours[scheme]}}}.s-{name}{{stroke:{colours[scheme]}}}"
            for name, colours in COLOURS.items()
        ]
