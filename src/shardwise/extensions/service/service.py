"""`shardwise.service`: an executor of batch servers, for the loader's `executor=`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from shardwise.base.arguments import check_flag, path_text, suggest_names
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import Executor
from shardwise.extensions.service.addresses import parse_addresses, scheme_of
from shardwise.extensions.service.executor import ServiceExecutor
from shardwise.extensions.service.ray_directory import RayDirectory, require_ray
from shardwise.extensions.service.tls import TlsFiles
from shardwise.extensions.service.transports import connect_to
from shardwise.plan.arguments import whole


@dataclass(frozen=True, slots=True)
class Service:
    """Batch servers that a loader uses; made by `shardwise.service`."""

    addresses: tuple[str, ...]
    fallback: bool = False
    token_file: str | None = None
    tls: TlsFiles | None = None

    def __call__(self, builder: BatchBuilder, *, timeout: float | None = None) -> Executor:
        return ServiceExecutor(
            builder,
            self.addresses,
            fallback=self.fallback,
            token_file=self.token_file,
            timeout=timeout,
            connect=connect_to(self.addresses, files=self.tls),
        )


class RayService:
    """Batch servers that Ray runs; made by `shardwise.service(ray=...)`.

    Several loaders may use it. The servers end when the process that started them does, or drops
    this and its loaders.
    """

    def __init__(self, directory: RayDirectory, *, fallback: bool) -> None:
        self._directory = directory
        self._fallback = fallback

    @property
    def num_servers(self) -> int:
        return self._directory.num_wanted

    def scale(self, count: int) -> None:
        """Add servers, or remove the newest, for all trainers that share them.

        Running loaders continue: a removed server's unanswered requests go to others. Returns when
        Ray knows of it; a new server takes part some seconds later.

        Args:
            count: servers from now on; 0 ends them all.

        Raises:
            ServiceError: Ray can't be reached.
            TypeError, ValueError: `count` is not a whole number of 0 or more.
        """
        self._directory.scale(whole("count", count, least=0))

    def __call__(self, builder: BatchBuilder, *, timeout: float | None = None) -> Executor:
        return ServiceExecutor(
            builder, directory=self._directory, fallback=self._fallback, timeout=timeout
        )

    def __repr__(self) -> str:
        return f"service(ray={self.num_servers})"


@overload
def service(
    addresses: str | Sequence[str],
    *,
    fallback: bool = False,
    token_file: str | os.PathLike[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
) -> Service: ...


@overload
def service(
    *,
    ray: int,
    ray_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    fallback: bool = False,
) -> RayService: ...


@suggest_names
def service(
    addresses: str | Sequence[str] | None = None,
    *,
    ray: int | None = None,
    ray_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    fallback: bool = False,
    token_file: str | os.PathLike[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
) -> Service | RayService:
    """Batches made by servers, for a loader's `executor=`: ones that run already, or Ray's actors.

    The servers must have the same data, decoders, transforms and release; others are refused. A
    server that dies, comes back or is late changes no batch and no order. No request goes to a
    server before the first batch is requested.

    Args:
        addresses: "tcp://host:port" of one server that `shardwise serve` started, or of several,
            as a list or with commas between; "ucx://host:port" for servers that were started
            with `--transport ucx`, which needs `token_file`; "tls://host:port" for servers that
            were started with `--tls-cert`.
        ray: in place of addresses, how many servers to start in the Ray cluster that this process
            has joined, or else one that runs on this machine. They get the dataset from the
            trainers. The first process to ask decides the number; `scale` changes it later.
        ray_options: of each server's actor, by the names of Ray's `options()`, such as
            `num_cpus`, by default 1, which is also its threads; `max_restarts`, by default -1, for
            no limit; `scheduling_strategy`, by default "SPREAD"; `resources`, `runtime_env`.
        name: of the servers on Ray: all who give it share them. By default the ranks of one
            process group do, or those of one Ray job.
        fallback: make batches in this process while no server answers, in place of waiting.
        token_file: the file with the token of the job, where servers at addresses have one. Its
            owner alone should be able to read it.
        tls_ca: a PEM file with the authorities that sign the certificates of servers at `tls://`;
            by default those that the system trusts.
        tls_cert: a PEM file with this trainer's certificate and private key, for servers that were
            started with `--tls-ca`.

    Raises:
        MissingExtraError: Ray is not installed.
        TypeError: an argument is of another type.
        ValueError: an address is not of this form, or arguments do not go together.

    Examples:
        >>> import shardwise as sw
        >>> servers = sw.service("tcp://a:7000,tcp://b:7000", fallback=True)
        >>> loader = sw.DataLoader(sw.wrap(range(10)), batch_size=4, executor=servers)
        >>> loader.stats()["executor"]
        'service'
    """
    check_flag("fallback", fallback)
    if (addresses is None) == (ray is None):
        raise ValueError(
            f"addresses={addresses!r:.80} and ray={ray!r:.80}: give the addresses of servers that "
            "run, or ray= and how many to start, and not both"
        )
    if ray is not None:
        if token_file is not None or tls_ca is not None or tls_cert is not None:
            raise ValueError(
                f"token_file={token_file!r:.80}, tls_ca={tls_ca!r:.80} or tls_cert="
                f"{tls_cert!r:.80} with ray={ray!r:.80}: servers on Ray have a token of their own "
                "and no TLS, so leave them out"
            )
        count = whole("ray", ray, least=1)
        require_ray()
        return RayService(
            RayDirectory(count, name=_checked_name(name), options=_checked_options(ray_options)),
            fallback=fallback,
        )
    if ray_options is not None or name is not None:
        raise ValueError("ray_options= and name= are for servers on Ray: give ray=, or leave them")
    assert addresses is not None
    path = _checked_path("token_file", token_file)
    tls = TlsFiles(_checked_path("tls_cert", tls_cert), ca=_checked_path("tls_ca", tls_ca))
    parsed = parse_addresses(addresses)
    has_tls = any(scheme_of(address) == "tls" for address in parsed)
    if tls != TlsFiles() and not has_tls:
        raise ValueError(
            "tls_ca= and tls_cert= are for addresses of tls://host:port: there is none"
        )
    ucx = [address for address in parsed if scheme_of(address) == "ucx"]
    if ucx and path is None:
        raise ValueError(
            f"{ucx[0]!r} without token_file=: servers of ucx:// serve under a token only, the file "
            "that `shardwise serve --token-file` has"
        )
    return Service(parsed, fallback, path, tls if has_tls else None)


def _checked_path(what: str, path: object) -> str | None:
    if path is None:
        return None
    text = path_text(what, path)
    if not text:
        raise ValueError(f"{what}='': give the path of a file")
    return text


def _checked_name(name: object) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"name={name!r:.80}: give a text, or None")
    return name


def _checked_options(options: object) -> Mapping[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise TypeError(f"ray_options={options!r:.80}: give a dict, as {{'num_cpus': 2}}")
    cpus = options.get("num_cpus", 1)
    if isinstance(cpus, bool) or not isinstance(cpus, int | float) or cpus < 0:
        raise ValueError(f"ray_options={options!r:.80}: num_cpus is a number, 0 or more")
    return options
