"""The seam between the core and its extensions: what an extension adds, by group and name.

The core imports no extension. Where a program asks for something that an extension has (a public
name, a command, a decoder, a sidecar of shards, a framework's guard), the core finds it here: in
the table of the extensions of this distribution, or among the entry points of other distributions
(group "shardwise.<group>"). A name in the table wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

# The module and the attribute, by group and name.
_OWN: Mapping[str, Mapping[str, str]] = {
    # Public names of `shardwise`.
    "names": {
        "BuildReport": "shardwise.extensions.build:BuildReport",
        "audio": "shardwise.extensions.media.decoders.audio:audio",
        "buckets": "shardwise.extensions.buckets.buckets:buckets",
        "build": "shardwise.extensions.build:build",
        "export_opentelemetry": "shardwise.extensions.monitor.exporters:export_opentelemetry",
        "export_prometheus": "shardwise.extensions.monitor.exporters:export_prometheus",
        "fetch": "shardwise.extensions.build:fetch",
        "from_webdataset": "shardwise.compat.native:from_webdataset",
        "join": "shardwise.extensions.fields.join:join",
        "jsonl": "shardwise.extensions.formats.functions:jsonl",
        "lance": "shardwise.extensions.tables.functions:lance",
        "lerobot": "shardwise.extensions.series.lerobot:lerobot",
        "litdata": "shardwise.extensions.formats.functions:litdata",
        "mds": "shardwise.extensions.formats.functions:mds",
        "media": "shardwise.extensions.media.decoders.media:media",
        "mix": "shardwise.extensions.mixtures.mix:mix",
        "pack": "shardwise.extensions.packs.pack:pack",
        "parquet": "shardwise.extensions.tables.functions:parquet",
        "service": "shardwise.extensions.service.service:service",
        "show": "shardwise.extensions.show.show:show",
        "tfrecord": "shardwise.extensions.formats.functions:tfrecord",
        "tokens": "shardwise.extensions.formats.functions:tokens",
        "trace": "shardwise.extensions.monitor.trace:trace",
        "video": "shardwise.extensions.media.decoders.video:video",
        "windows": "shardwise.extensions.series.windows:windows",
    },
    # Commands of the shell: click commands.
    "commands": {
        "bench": "shardwise.extensions.tools.bench:bench",
        "build": "shardwise.extensions.build.command:build",
        "cache": "shardwise.extensions.remote.cache.command:cache",
        "certify": "shardwise.extensions.certify.command:certify",
        "redact": "shardwise.extensions.living.command:redact",
        "report": "shardwise.extensions.monitor.report_command:report",
        "watch": "shardwise.extensions.monitor.watch_command:watch",
        "convert": "shardwise.extensions.build.command:convert",
        "doctor": "shardwise.extensions.tools.doctor:doctor",
        "explain": "shardwise.extensions.ask.command:explain",
        "info": "shardwise.extensions.tools.info:info",
        "plan": "shardwise.extensions.tools.plan:plan",
        "reshard": "shardwise.extensions.build.command:reshard",
        "serve": "shardwise.extensions.service.command:serve",
        "show": "shardwise.extensions.show.command:show",
        "verify": "shardwise.extensions.tools.verify:verify",
    },
    # A process's part in a cache that nodes share: a cache -> `Sharing`.
    "caches": {"share": "shardwise.extensions.share.sharing:Sharing"},
    # Writers of a loader's counts: directory, coverage -> `MetricsFile`.
    "metrics": {"lines": "shardwise.extensions.monitor.metrics_file:MetricsFile"},
    # For ranks of a model-parallel group, see `DataLoader`: group, share, timeout -> `Sharing`; and
    # group, halves -> a function of a batch.
    "parallel": {
        "halves": "shardwise.extensions.parallel.sharing:halves_of",
        "sharing": "shardwise.extensions.parallel.sharing:Sharing",
    },
    # Image fields with `decode_on=`: dataset, device, obstacle -> the maker of their batches, or
    # None if the CPU decodes them.
    "decoding": {"images": "shardwise.extensions.device_images.fields:decode_on_device"},
    # Conversions of a batch's arrays: sharding, remainder -> a function of the batch.
    "outputs": {"jax": "shardwise.extensions.jax:JaxArrays"},
    # A `RemoteStorage` of `shardwise.storage.open`; the headers of a remote tar, as `FileBytes`;
    # and the reads of a pass, of which caches learn before they are made.
    "storage": {
        "expected": "shardwise.extensions.remote.cache.expected_reads:ExpectedReads",
        "headers": "shardwise.extensions.remote.header_prefetch:HeaderPrefetch",
        "remote": "shardwise.extensions.remote.storage:REMOTE",
    },
    # Files beside the index of a shard: a `Sidecar` of `shardwise.sources.tar.sidecar`.
    "sidecars": {"media": "shardwise.extensions.media.tar.media_sidecar:MEDIA"},
    # Decoders of `shardwise.codecs`.
    "decoders": {
        "audio": "shardwise.extensions.media.decoders.audio:audio",
        "media": "shardwise.extensions.media.decoders.media:media",
        "video": "shardwise.extensions.media.decoders.video:video",
    },
    # Values of backend= for videos: a `VideoBackend` of the media extension.
    "video_backends": {
        "pictures": "shardwise.extensions.media.files.numbered:decode_pictures",
        "pyav": "shardwise.extensions.media.files.pyav_backend:decode_with_pyav",
    },
    # Methods of `Dataset`: source, transforms, fields, arguments -> source, transforms.
    "methods": {
        "clips": "shardwise.extensions.media.clips.make:make_clips",
        "members": "shardwise.extensions.fields.sources:list_members",
        "segments": "shardwise.extensions.media.segments.make:make_segments",
    },
    # Answers of the loader that need the dataset: lists of samples as ids, and where samples lie.
    "questions": {
        "explain": "shardwise.extensions.ask.step:Step",
        "ids": "shardwise.extensions.ask.lists:ids_of",
        "keys": "shardwise.extensions.ask.lists:ids_of_keys",
        "order": "shardwise.extensions.ask.lists:read_order",
    },
    # Resuming from a state of less data: dataset, plan, state -> plan, state.
    "plans": {"grow": "shardwise.extensions.living.growth:grow"},
    # A check that the samples which an index lists as removed are zeros.
    "removal": {"check": "shardwise.extensions.living.redaction:find_left"},
    # The public function that opens the data a file of this name describes: url -> name or None.
    "kinds": {
        ".jsonl": "shardwise.extensions.formats.jsonl.kind:kind_of_lines",
        "index.json": "shardwise.extensions.formats.records.index_json:kind_of_index",
    },
    # Sources that `sw.wrap` makes of a class, by its full name: dataset -> source.
    "wrapped": {
        "datasets.arrow_dataset.Dataset": "shardwise.extensions.tables.huggingface:wrap_dataset"
    },
    # A `Guard` of `shardwise.loader.frameworks`, by the module that the program has imported.
    "frameworks": {
        "accelerate.state": "shardwise.integrations.guards:ACCELERATE",
        "composer.trainer.trainer": "shardwise.integrations.guards:COMPOSER",
        "keras": "shardwise.integrations.guards:KERAS",
        "lightning.pytorch": "shardwise.integrations.guards:LIGHTNING",
        "pytorch_lightning": "shardwise.integrations.guards:LIGHTNING",
        "ray.train.torch.train_loop_utils": "shardwise.integrations.guards:RAY",
        "torch.distributed.checkpoint": "shardwise.integrations.guards:CHECKPOINT",
    },
}


def own_names(group: str) -> list[str]:
    """The names of a group that this distribution adds; reads no file."""
    return [*_OWN[group]]


def has(group: str, name: str) -> bool:
    """Whether an extension adds a name; other distributions' are only read (40 ms) if none here."""
    return name in _OWN[group] or name in _others(group)


def find(group: str, name: str) -> Any:
    """Find the object that an extension adds under a name; imports the extension.

    Raises:
        LookupError: no extension adds the name.
        MissingExtraError: the extension's files are not installed.
    """
    own = _OWN[group].get(name)
    if own is None:
        return _others(group)[name].load()
    module, _, attribute = own.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        from shardwise.base.errors import MissingExtraError

        message = f"{name!r} is an extension's, and its module {error.name} is not there"
        raise MissingExtraError(message, extra="all") from error


@cache
def _others(group: str) -> Mapping[str, Any]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=f"shardwise.{group}")}
