"""The stages of a pipeline, as WebDataset names them.

`shuffle(1000)` is a stage; `_shuffle(source, 1000)` is the function behind it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardwise.compat.webdataset import batches, keys, mapping, order
from shardwise.compat.webdataset.filter_functions import (
    FilterFunction,
    RestCurried,
    pipelinefilter,
)
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.pytorch import TorchTensor
from shardwise.compat.webdataset.sample_cache import Cached, LMDBCached
from shardwise.compat.webdataset.utils import PipelineStage, identity

# A name with an underscore is a function of a source, and without it the stage.
_NAMES = {
    batches: "_batched _unbatched _unlisted combine_values default_collation_fn dict2tuple "
    "tuple2dict",
    keys: "_extract_keys _rename _rename_keys _xdecode decode_bin decode_pickle decode_text "
    "default_decoders find_decoder",
    mapping: "_associate _decode _info _log_keys _map _map_dict _map_tuple _select _to_tuple "
    "getfirst transform_with",
    order: "_rsample _shuffle detshuffle pick",
}
for _module, _names in _NAMES.items():
    for _name in _names.split():
        globals()[_name] = getattr(_module, _name)
        if _name.startswith("_"):
            globals()[_name[1:]] = pipelinefilter(getattr(_module, _name))

slice = pipelinefilter(itertools.islice)  # noqa: A001 - WebDataset's name


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


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
