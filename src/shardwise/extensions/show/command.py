"""`shardwise show`: samples in the terminal, or in a file."""

from __future__ import annotations

import sys

import click
import numpy as np
from numpy.typing import NDArray

from shardwise.cli import options
from shardwise.cli.data import decoded, open_data
from shardwise.cli.output import clean, finish, plural, write_line
from shardwise.extensions.show.show import Shown
from shardwise.extensions.show.show import show as show_samples
from shardwise.plan.arguments import whole


@click.command()
@options.urls_argument
@options.number_option("-n", "--num-samples", default=4, text="How many.")
@options.number_option("--first", least=0, default=0, text="The id of the first one.")
@click.option(
    "-o", "--output", metavar="FILE", type=options.PathType(), help="Write .png, .jpg or .html."
)
@options.shard_options
@options.common_options
def show(
    urls: tuple[str, ...],
    num_samples: int,
    first: int,
    output: str | None,
    index: str | None,
    accept_unfinished: bool,
) -> None:
    """Show samples: pictures, strips of clips, waveforms and texts, in storage order.

    Fields are decoded by their names. Exit code 1 if a sample is damaged, 2 without such an id.
    """
    data = decoded(open_data(urls, index=index, accept_unfinished=accept_unfinished))
    with options.usage_errors():
        whole("--first", first, least=0, most=max(0, len(data) - 1))
        chosen = data.subset(range(first, min(first + num_samples, len(data))))
        shown = show_samples(chosen, num_samples=num_samples, side=160 if output else 48)
        if output:
            shown.save(output)
    document = {
        "num_samples": len(data),
        "output": output,
        "samples": [{"key": cell.key, "fields": dict(cell.texts)} for cell in shown.cells],
    }
    count = plural(len(shown.cells), "sample")
    finish(document, lambda _: write_line(f"{output}: {count}") if output else write_samples(shown))


def write_samples(shown: Shown) -> None:
    """Write samples as texts, on a terminal with their pictures."""
    for cell in shown.cells:
        write_line(clean(cell.key))
        is_drawn = sys.stdout.isatty()
        for name, text in cell.texts.items():
            if is_drawn and name in cell.tiles:
                _draw(cell.tiles[name])
            else:
                write_line(clean(f"  {name}: {text}"))


def _draw(pixels: NDArray[np.uint8]) -> None:
    """Draw a picture, two of its lines in a line of half blocks, cut at the terminal's width."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    colours = pixels[:, : console.width].tolist()
    for upper, lower in zip(colours[::2], colours[1::2], strict=False):
        line = Text()
        for above, below in zip(upper, lower, strict=True):
            line.append("▀", "rgb({},{},{}) on rgb({},{},{})".format(*above, *below))
        console.print(line)
