"""`shardwise explain`: which samples a step has, where a sample comes, and what they look like."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from shardwise.cli.data import open_data
from shardwise.cli.options import (
    common_options,
    number_option,
    shard_options,
    urls_argument,
    usage_errors,
)
from shardwise.cli.output import finish, plural, write_line, write_table
from shardwise.dataset import Dataset
from shardwise.extensions.ask.step import Step
from shardwise.extensions.show.command import write_samples
from shardwise.extensions.show.show import show as show_samples
from shardwise.loader import DataLoader
from shardwise.plan.sampler import sampler_from_spec

_SHUFFLES = {"none": False, "true": True, "full": "full", "window": "window"}


@click.command()
@urls_argument
@number_option("--step", least=0, text="Show this step of an epoch.")
@click.option("--key", help="Show where the sample of this key comes.")
@number_option("--rank", least=0, default=0, text="Whose batch.")
@number_option("--world-size", default=1, text="Ranks.")
@number_option("--batch-size", default=64, text="Samples a rank and step.")
@click.option("--shuffle", type=click.Choice([*_SHUFFLES]), help="[default: true with --seed]")
@click.option("--seed", type=int, help="Of the shuffle.")
@click.option("--remainder", type=click.Choice(["drop", "pad", "uneven"]))
@number_option("--epoch", least=0, text="Which one; with --key the first.  [default: 0]")
@number_option("--epochs", default=1, text="With --key: how many to look into.")
@number_option("--epoch-size", text="Samples a virtual epoch.")
@click.option("--exclude", metavar="FILE", help="The loader's exclude=.")
@click.option(
    "--state",
    type=click.Path(exists=True, dir_okay=False),
    help="JSON of a loader's state: the order, epoch and next step.",
)
@click.option(
    "--show",
    metavar="[PAGE]",
    is_flag=False,
    flag_value="-",
    help="Show the samples of the step, here or in a file, .html or .png.",
)
@shard_options
@common_options
def explain(
    urls: tuple[str, ...],
    step: int | None,
    key: str | None,
    epoch: int | None,
    epochs: int,
    show: str | None,
    index: str | None,
    accept_unfinished: bool,
    **options: Any,
) -> None:
    """Show which samples a step of a training has, past or future, or where a sample comes.

    Give --step or --key, and the options of the loader. No sample is read, but for --show.
    Exit code 2 if there is no such step or key.
    """
    if (step is None and options["state"] is None) == (key is None) or (show and key):
        raise click.UsageError("give --step N, --state FILE or both; or --key KEY, without --show")
    data = open_data(urls, index=index, accept_unfinished=accept_unfinished)
    with usage_errors():
        loader = _loader(data, **options)
        epoch = loader.epoch if epoch is None else epoch
        if key is not None:
            places = loader.places_of(key, epochs=range(epoch, epoch + epochs))
            names = ("epoch", "step", "rank", "row")
            found = [dict(zip(names, place, strict=True)) for place in places]
            finish({"key": key, "places": found}, _show_places, epochs)
            return
        step = loader._cut_epoch(epoch)[1] if step is None else step
        explained: Step = loader.explain(step, epoch=epoch)
        finish(explained.to_dict(), lambda _: _show_rows(explained))
        if show:
            batch = loader.batch_at(step, epoch=epoch)
            rows = range(len(explained.ids))
            samples = [{name: column[row] for name, column in batch.items()} for row in rows]
            _show_samples(samples, explained, show)


def _loader(data: Dataset, *, state: str | None, **options: Any) -> DataLoader:
    """The loader that the options describe, where a state stood if there is one."""
    shuffle, seed, its = options.pop("shuffle"), options.pop("seed"), None
    if state is not None:
        its = _read_state(state)
        if shuffle or seed is not None or options["epoch_size"]:
            raise click.UsageError("--state has the order: leave --shuffle, --seed, --epoch-size")
        options["sampler"] = data.sampler or sampler_from_spec(its["order"], data.shard_sizes)
        if options["sampler"] is None:
            raise click.UsageError(
                f"the order of {state!r} can't be made from its description, of which weights "
                "and lengths are digests: ask loader.explain() in the program that makes it"
            )
    elif data.sampler is None:
        default = "none" if seed is None else "true"
        options |= {"shuffle": _SHUFFLES[shuffle or default], "seed": seed or 0}
    loader = DataLoader(data, num_workers=0, num_threads=0, output="numpy", **options)
    if its is not None:
        loader.load_state_dict(its)
    return loader


def _read_state(path: str) -> dict[str, Any]:
    try:
        state = json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise click.UsageError(f"--state {path}: it is no JSON: {error}") from None
    if not isinstance(state, dict) or not isinstance(state.get("order"), dict):
        raise click.UsageError(f"--state {path}: it is no state of a loader: it has no order")
    return state


def _show_rows(step: Step) -> None:
    write_line(step.title)
    write_line()
    write_table([">id", ">position", "key", "bytes", "shard", "source"], step.rows())


def _show_places(document: dict[str, Any], epochs: int) -> None:
    places = [list(map(str, place.values())) for place in document["places"]]
    if places:
        write_table([">epoch", ">step", ">rank", ">row"], places)
    else:
        write_line(f"{document['key']!r} does not come in {plural(epochs, 'epoch')}")


def _show_samples(samples: list[dict[str, Any]], step: Step, target: str) -> None:
    """Show a batch in the terminal, or write it into a page or a picture."""
    if target == "-" and not sys.stdout.isatty():
        raise click.UsageError("--show draws in a terminal: name a page, --show page.html")
    side = 48 if target == "-" else 160
    shown = show_samples(samples, num_samples=max(1, len(samples)), side=side)
    if target == "-":
        write_samples(shown)
    else:
        shown.save(target, title=step.title, text=str(step))
