"""Draws demo.svg, the demo's account of every sample.

./demo --json | python docs/images/demo.py
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from examples.digits.summary import show

if __name__ == "__main__":
    console = Console(record=True, width=84, file=io.StringIO())
    show(json.load(sys.stdin), console)
    # No font is fetched from elsewhere.
    style = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    picture = console.export_svg(title="./demo", code_format=style)
    Path(__file__).with_suffix(".svg").write_text(picture)
