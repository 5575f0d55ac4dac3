"""Draws throughput.svg, images per second by loader, from a table of benchmarks/RESULTS.md.

python docs/images/throughput.py
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]
TABLE = "**Images**: JPEG of about 500x400"
WIDTH, LEFT, BAR, GAP = 640, 190, 20, 8


def rates() -> dict[str, float]:
    """Images per second by loader, in the table's order."""
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    rows = text[text.index(TABLE) :].split("\n\n")[1].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name: float(rate.replace(",", "")) for name, rate, *_ in cells if name != "floor"}


def draw() -> str:
    """The picture as SVG, in the reader's colours, light or dark."""
    found = rates()
    height = 40 + len(found) * (BAR + GAP)
    scale = (WIDTH - LEFT - 70) / max(found.values())
    parts = ['<text class="title" x="10" y="20">images/s, 2 workers on 2 cores</text>']
    for number, (name, rate) in enumerate(found.items()):
        y = 34 + number * (BAR + GAP)
        kind = "own" if name.startswith("shardwise") else "peer"
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{rate * scale:.0f}" height="{BAR}"/>',
            f'<text x="{LEFT + rate * scale + 8:.0f}" y="{y + 15}">{rate:,.0f}</text>',
        ]
    style = (
        "text{font:13px sans-serif;fill:#222}.title{font-weight:bold}.own{fill:#00897b}"
        ".peer{fill:#b0bec5}@media(prefers-color-scheme:dark){text{fill:#ddd}.peer{fill:#546e7a}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Images per second by loader">\n<style>{style}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(draw())
