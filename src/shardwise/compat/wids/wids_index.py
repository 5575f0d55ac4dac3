"""The command `widsindex`: makes, changes and shows wids' indexes in JSON.

Counts come from the shards' headers, so nothing is copied.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from shardwise.base.errors import DataError, ShardwiseError
from shardwise.compat.wids.gone import finder
from shardwise.compat.wids.shards import compute_file_md5sum
from shardwise.compat.wids.wids_specs import (
    KIND,
    load_remote_dsdesc_raw,
    urldir,
    without_none,
)
from shardwise.sources.tar.source import TarSource
from shardwise.storage import atomic_write, expand, is_local, local_path
from shardwise.storage.urls import scheme_of

__getattr__ = finder(__name__)


class _Commands(click.Group):
    """A group that ends errors of the data in one line, with exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ShardwiseError, OSError) as error:
            click.echo(f"widsindex: {error}", err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def widsindex() -> None:
    """Make, change and show indexes of tar shards, as wids reads them."""


def main() -> NoReturn:
    sys.exit(widsindex(prog_name="widsindex"))


def make_index(
    urls: list[str],
    *,
    directory: str = ".",
    name: str | None = None,
    info: str | None = None,
    base: str | None = None,
    md5: bool | None = None,
) -> dict[str, Any]:
    urls = expand(urls)
    shards = TarSource(urls, accept_unfinished=True).manifest.shards
    listed = []
    for url, shard in zip(urls, shards, strict=True):
        entry: dict[str, Any] = {"url": url if base is not None else _seen_from(directory, url)}
        if is_local(url) and md5 is not False:
            entry["md5sum"] = compute_file_md5sum(local_path(url))
        elif md5:
            raise DataError("the MD5 of a remote shard is not taken: copy it here first", url=url)
        listed.append({**entry, "nsamples": shard.num_samples, "filesize": shard.num_bytes})
    known = without_none({"name": name, "base": base, "info": info})
    listed.sort(key=lambda entry: str(entry["url"]))
    return {"__kind__": KIND, "wids_version": 1, **known, "shardlist": listed}


def _seen_from(directory: str, url: str) -> str:
    """A path as an index in `directory` names it: relative if it lies under it."""
    if not is_local(url):
        return url
    path = Path(local_path(url)).absolute()
    here = Path(directory).absolute()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@widsindex.command()
@click.argument("files", nargs=-1, required=True)
@click.option("-o", "--output", default="shardindex.json", help="The index to write.")
@click.option("-n", "--name", help="The data set's name; made of the first file's if not given.")
@click.option("-i", "--info", help="A text file that says what the data set is.")
@click.option("-b", "--base", help="What the files are relative to for readers.")
@click.option("--md5/--no-md5", default=None, help="Hash the shards, or none; local ones else.")
def create(
    files: tuple[str, ...],
    output: str,
    name: str | None,
    info: str | None,
    base: str | None,
    md5: bool | None,
) -> None:
    """Make an index of FILES: paths, URLs, brace patterns, globs; "-" reads them from stdin."""
    given = [line.strip() for line in sys.stdin if line.strip()] if files == ("-",) else [*files]
    if not given:
        raise click.UsageError("no files on stdin")
    index = make_index(
        given,
        directory=os.path.dirname(output) or ".",  # noqa: PTH120
        name=_short_name(given[0]) if name is None else name or None,
        info=None if info is None else Path(info).read_text(encoding="utf-8"),
        base=base,
        md5=md5,
    )
    _write(output, index)
    samples = sum(shard["nsamples"] for shard in index["shardlist"])
    click.echo(f"{output}: {len(index['shardlist'])} shards, {samples} samples")


def _short_name(file: str) -> str:
    """A name of the words in a path, each once, without plain numbers."""
    stem = re.sub(r"\.[^/.]*$", "", file)
    words = dict.fromkeys(re.split(r"\W+", stem))
    return "-".join(word for word in words if not re.fullmatch(r"\d*", word))


def _write(path: str, index: dict[str, Any]) -> None:
    with atomic_write(path, "w") as file:
        file.write(json.dumps(index, indent=2) + "\n")


@widsindex.command()
@click.argument("filename")
@click.option("-n", "--name", help="Set the data set's name.")
@click.option("-k", "--keep", "keep", flag_value="yes", help="Set the flag 'keep'.")
@click.option("-K", "--nokeep", "keep", flag_value="no", help="Clear the flag 'keep'.")
@click.option("-i", "--info", help="Set what the data set is.")
@click.option("-D", "--nodir", is_flag=True, help="Take the directories out of the URLs.")
@click.option("-d", "--dir", "directory", help="Set the directory of the URLs.")
@click.option("-b", "--base", help="Set what the URLs are relative to.")
@click.option("-B", "--rebase", is_flag=True, help="Make the URLs' own directory the base.")
def update(
    filename: str,
    name: str | None,
    keep: str | None,
    info: str | None,
    nodir: bool,
    directory: str | None,
    base: str | None,
    rebase: bool,
) -> None:
    """Change an index in place; nothing that is not named changes."""
    if sum((nodir, directory is not None, rebase)) > 1:
        raise click.UsageError("--nodir, --dir and --rebase exclude each other")
    before = Path(filename).read_bytes()
    index = load_remote_dsdesc_raw(filename)
    flag = None if keep is None else keep == "yes"
    index |= without_none({"name": name, "info": info, "base": base, "keep": flag})
    if not index.get("name"):
        index["name"] = Path(filename).stem
    shards = index.get("shardlist", [])
    if rebase:
        index["base"] = _common_directory(shards, filename)
    if nodir or rebase or directory is not None:
        for shard in shards:
            file = shard["url"].rpartition("/")[2]
            shard["url"] = f"{directory.rstrip('/')}/{file}" if directory else file
        shards.sort(key=lambda shard: str(shard["url"]))
    # The old index stays beside the new one.
    with atomic_write(f"{filename}.bak") as saved:
        saved.write(before)
    _write(filename, index)


def _common_directory(shards: list[dict[str, Any]], filename: str) -> str:
    found = {urldir(shard["url"]) for shard in shards}
    if len(found) != 1:
        raise DataError(
            f"the shards lie in {len(found)} directories, and only one can be the base",
            url=filename,
        )
    (directory,) = found
    if scheme_of(directory) or directory.startswith("/"):
        return directory
    return str((Path(filename).parent / directory).absolute())


@widsindex.command()
@click.argument("filenames", nargs=-1)
@click.option("-t", "--table", is_flag=True, help="A line an index, with tabs.")
def info(filenames: tuple[str, ...], table: bool) -> None:
    """Show what indexes hold."""
    if table:
        click.echo("\t".join(("file", "name", "nbytes", "nsamples", "base", "last", "datasets")))
    for filename in filenames:
        index = load_remote_dsdesc_raw(filename)
        shards = index.get("shardlist", [])
        num_bytes = sum(shard.get("filesize", 0) for shard in shards)
        num_samples = sum(shard.get("nsamples", 0) for shard in shards)
        last = shards[-1]["url"] if shards else None
        datasets = index.get("datasets", [])
        name, base = index.get("name"), index.get("base")
        if table:
            row = (filename, name, num_bytes, num_samples, base, last, len(datasets))
            click.echo("\t".join(map(str, row)))
            continue
        rows = {
            "filename": filename,
            "name": name,
            "info": index.get("info"),
            "base": base or f"{urldir(filename) or '.'} (the index's directory)",
            "shards": len(shards),
            "total size": num_bytes,
            "total samples": num_samples,
            "avg sample size": num_bytes // max(1, num_samples),
            "avg shard size": num_bytes // max(1, len(shards)),
            "first shard": shards[0]["url"] if shards else None,
            "last shard": last,
        }
        for number, part in enumerate(datasets):
            where = part.get("source_url") or f"{len(part.get('shardlist', []))} shards"
            rows[f"dataset {number}"] = f"{part.get('name')}: {where}"
        for title, value in rows.items():
            click.echo(f"{title:>16}: {value}")
        click.echo()


@widsindex.command()
@click.argument("filename")
@click.argument("index", type=int, default=0)
@click.option("-p", "--python", is_flag=True, hidden=True)
@click.option("-r", "--raw", is_flag=True, help="Show bytes, not what they decode to.")
@click.option("-c", "--cat", metavar="FIELD", help="Write the bytes of one field to stdout.")
@click.option("-w", "--width", default=250, help="Longest line.")
def sample(filename: str, index: int, python: bool, raw: bool, cat: str | None, width: int) -> None:
    """Show one sample of the data set that the index FILENAME lists."""
    del python
    from shardwise.compat.wids.wids import ShardListDataset

    is_raw = raw or cat is not None
    dataset: ShardListDataset[dict[str, Any]] = ShardListDataset(
        filename, transformations=_to_bytes if is_raw else "PIL"
    )
    try:
        found = dataset[index]
    except IndexError as error:
        raise click.UsageError(str(error)) from error
    if cat is not None:
        if cat not in found:
            raise click.UsageError(f"no field {cat!r}: the sample has {', '.join(sorted(found))}")
        click.echo(found[cat], nl=False)
        return
    longest = max(map(len, found))
    for key, value in sorted(found.items()):
        click.echo(f"{key:<{longest}} {value!r}"[:width])


def _to_bytes(found: dict[str, Any]) -> dict[str, Any]:
    return {k: v.read() if hasattr(v, "read") else v for k, v in found.items()}


if __name__ == "__main__":
    main()
