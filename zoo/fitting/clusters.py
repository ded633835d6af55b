"""Workers on other machines: a cluster of Dask or of Ray, in place of the processes of this machine."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

from zoo.errors import UserError
from zoo.fitting.dask_cluster import connect_dask, own_dask
from zoo.fitting.ray_cluster import connect_ray
from zoo.fitting.side_by_side import Here, Workers, number_of_jobs

AUTO = "auto"
#: Scheme -> how to connect, what has to be installed, and the extra that brings it.
SCHEMES = {"dask": (connect_dask, "distributed", "cluster"), "ray": (connect_ray, "ray", "ray")}


@contextlib.contextmanager
def workers(jobs: int = 1, cluster: str | None = None) -> Iterator[Workers]:
    """Who computes: processes of this machine, or the workers of a cluster.

    :param jobs: processes side by side; -1 is one a core.  Clusters of other machines have what they have
    :param cluster: None, ``auto`` (a Dask cluster of ``jobs`` processes, which lives as long as this),
        ``dask://HOST:PORT`` or ``ray://HOST:PORT``
    :raises UserError: for an address that is none, a package that is missing, a cluster that does not answer,
        has no workers or has others than the caller could use
    """
    jobs = number_of_jobs(jobs)
    if cluster is None:
        yield Here(jobs)
        return
    scheme, host, port = _parts(cluster)
    connect, package, extra = SCHEMES[scheme]
    try:
        importlib.import_module(package)
    except ImportError:
        raise UserError(
            f"--cluster {cluster} needs {package}: pip install 'posterior-zoo[{extra}]'"
        ) from None
    if cluster != AUTO and jobs != 1:
        raise UserError(f"--jobs is for this machine and --cluster auto: {cluster} has the workers it has")
    with own_dask(jobs) if cluster == AUTO else connect(cluster, host, port) as found:
        yield found


def _parts(cluster: str) -> tuple[str, str, int]:
    """``dask://host:8786`` -> dask, host, 8786; :raises UserError: for anything else but ``auto``"""
    if cluster == AUTO:
        return "dask", "", 0
    scheme, _, place = cluster.partition("://")
    host, _, port = place.rpartition(":")
    if scheme not in SCHEMES or not host or not port.isdecimal():
        raise UserError(f"--cluster is dask://HOST:PORT, ray://HOST:PORT or auto, not {cluster!r}")
    return scheme, host, int(port)
