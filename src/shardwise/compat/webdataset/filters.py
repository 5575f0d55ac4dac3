"""The stages of a pipeline, as WebDataset names them.

`shuffle(1000)` is a stage; `_shuffle(source, 1000)` is the function behind it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from shardwise.compat.webdataset.batches import (
    _batched,
    _unbatched,
    _unlisted,
    combine_values,
    default_collation_fn,
    dict2tuple,
    tuple2dict,
)
from shardwise.compat.webdataset.curry import FilterFunction, RestCurried, pipelinefilter
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.kept import Cached, LMDBCached
from shardwise.compat.webdataset.keys import (
    _extract_keys,
    _rename,
    _rename_keys,
    _xdecode,
    decode_bin,
    decode_pickle,
    decode_text,
    default_decoders,
    find_decoder,
)
from shardwise.compat.webdataset.mapping import (
    _associate,
    _decode,
    _info,
    _log_keys,
    _map,
    _map_dict,
    _map_tuple,
    _select,
    _to_tuple,
    getfirst,
    transform_with,
)
from shardwise.compat.webdataset.order import _rsample, _shuffle, detshuffle, pick
from shardwise.compat.webdataset.pytorch import TorchTensor
from shardwise.compat.webdataset.utils import PipelineStage, identity


def compose2(f: Callable[[Any], Any], g: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """First f, then g."""
    return lambda x: g(f(x))


def compose(*args: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Functions one after the other, the first one first."""
    return functools.reduce(compose2, args)


def pipeline(source: Any, *args: Callable[[Any], Any]) -> Any:
    """A source with stages behind it."""
    return compose(*args)(source) if args else source


def parse_field_spec(fields: str | list[str]) -> list[list[str]]:
    """Fields with alternatives: "jpg;png cls" is [["jpg", "png"], ["cls"]]."""
    names = fields.split() if isinstance(fields, str) else fields
    return [name.split(";") for name in names]


associate = pipelinefilter(_associate)
batched = pipelinefilter(_batched)
decode = pipelinefilter(_decode)
extract_keys = pipelinefilter(_extract_keys)
info = pipelinefilter(_info)
log_keys = pipelinefilter(_log_keys)
map = pipelinefilter(_map)  # noqa: A001 - WebDataset's name
map_dict = pipelinefilter(_map_dict)
map_tuple = pipelinefilter(_map_tuple)
rename = pipelinefilter(_rename)
rename_keys = pipelinefilter(_rename_keys)
rsample = pipelinefilter(_rsample)
select = pipelinefilter(_select)
shuffle = pipelinefilter(_shuffle)
slice = pipelinefilter(itertools.islice)  # noqa: A001 - WebDataset's name
to_tuple = pipelinefilter(_to_tuple)
unbatched = pipelinefilter(_unbatched)
unlisted = pipelinefilter(_unlisted)
xdecode = pipelinefilter(_xdecode)
