"""The rows of a version of a table: the manifest, and the position of each sample.

Without a filter sample i is live row i of the version, and nothing is stored beyond O(fragments)
(I7). A filter is evaluated once, where the dataset is made: 4 bytes for each row that it keeps,
which travel with the pickled dataset and count in the fingerprint.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.sources.manifest import Manifest, Shard


@dataclass(frozen=True)
class Description:
    """A version of a table: schema (blobs as binaries) and, by fragment, live rows and bytes.

    The digest names all files: a table made again under the same name and version has another.
    """

    version: int
    schema: pa.Schema
    blobs: frozenset[str]
    fragments: NDArray[np.int64]
    sizes: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    digest: str


class RowSelection:
    """The samples of a version: fragments are shards; `selected` are a filter's positions."""

    def __init__(
        self,
        uri: str,
        description: Description,
        *,
        condition: str | None = None,
        selected: NDArray[np.int64] | None = None,
    ) -> None:
        self.description = description
        sizes = description.sizes
        ends = np.cumsum(sizes)
        self._starts: NDArray[np.int64] = ends - sizes
        self._rows: NDArray[np.uint32] | None = None
        kind = f"lance version {description.version} {description.digest}"
        if selected is not None:
            fragment = np.searchsorted(ends, selected, side="right")
            # A fragment has less than 2**32 rows: Lance's addresses have 32 bits for them.
            self._rows = (selected - self._starts[fragment]).astype(np.uint32)
            sizes = np.bincount(fragment, minlength=len(ends)).astype(np.int64)
            digest = hashlib.sha256(f"{condition}\n".encode())
            digest.update(sizes.astype("<i8").data)
            digest.update(self._rows.astype("<u4").data)
            kind += f" filter {digest.hexdigest()[:16]}"
        shards = [
            Shard(f"{uri}#fragment={number}", num_samples, num_bytes)
            for number, num_samples, num_bytes in zip(
                description.fragments.tolist(),
                sizes.tolist(),
                description.num_bytes.tolist(),
                strict=True,
            )
        ]
        self.manifest = Manifest(kind, shards)

    def places(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of samples among the live rows of the version, ascending as ids do."""
        if self._rows is None:
            return ids
        fragment, _ = self.manifest.locate(ids)
        return self._starts[fragment] + self._rows[ids]

    def keys(self, ids: NDArray[np.int64]) -> list[str]:
        """The keys of samples: "fragment:row", the row among those that are not deleted."""
        fragment, row = self.manifest.locate(ids)
        rows: list[int] = (row if self._rows is None else self._rows[ids]).tolist()
        numbers = self.description.fragments[fragment].tolist()
        return [f"{number}:{place}" for number, place in zip(numbers, rows, strict=True)]
