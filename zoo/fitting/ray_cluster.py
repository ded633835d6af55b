"""A Ray cluster on other machines, by the port of its head for clients.

Pieces and results travel as bytes: the head, which hands them on, needs Ray and nothing else.  Workers find
this project, and what else the caller added to Python's path, where the caller has it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import UserError
from zoo.fitting.cluster_tasks import (
    KILLED,
    PATIENCE,
    WAITING,
    Cluster,
    Code,
    check_code,
    going_away,
    own_code,
    quiet,
    reach,
)

#: How many times a piece is tried again whose worker was killed, and a connection that Ray failed to make.
RETRIES = 3


@contextlib.contextmanager
def connect_ray(cluster: str, host: str, port: int) -> Iterator[Cluster]:
    """The cluster whose head listens there for clients."""
    import ray
    import ray.util.client.worker  # which brings the loggers

    if ray.is_initialized():
        raise UserError(
            f"--cluster {cluster}: this process has a Ray cluster already; ray.shutdown() leaves it"
        )
    quiet("ray")
    if not isinstance(threading.excepthook, _AllButClosedChannels):
        threading.excepthook = _AllButClosedChannels(threading.excepthook)  # for good: such threads end late
    _knock(cluster, host, port)
    _connect(cluster)
    try:
        yield Cluster(cluster, _count(cluster), functools.partial(_outcomes, cluster))
    finally:
        ray.shutdown()  # gives up what waits or runs


@dataclass(frozen=True)
class _AllButClosedChannels:
    """A hook for threads that die: ``tell`` hears of all but those of gRPC that look after a channel which
    Ray closes under them.  That happens where a head is gone and Ray tries to reach it, and harms none; that
    the cluster went away is said by us.
    """

    tell: Callable[[threading.ExceptHookArgs], object]

    def __call__(self, died: threading.ExceptHookArgs) -> None:
        frames = traceback.extract_tb(died.exc_traceback)
        if died.exc_type is not ValueError or "_poll_connectivity" not in {frame.name for frame in frames}:
            self.tell(died)


def _knock(cluster: str, host: str, port: int) -> None:
    """:raises UserError: where nobody listens, or another, whom Ray would ask for half a minute"""
    import grpc
    from ray.core.generated import ray_client_pb2, ray_client_pb2_grpc

    reach(cluster, host, port).close()
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return  # it answers to those who have its keys
    ping = ray_client_pb2.ClusterInfoRequest(type=ray_client_pb2.ClusterInfoType.PING)
    strangers = (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
    )
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        try:
            ray_client_pb2_grpc.RayletDriverStub(channel).ClusterInfo(ping, timeout=PATIENCE)
        except grpc.RpcError as error:
            if error.code() in strangers:
                raise UserError(
                    f"what listens at {cluster} is no head of Ray waiting for clients: is that its port for "
                    "them, 10001 or what ray start had for --ray-client-server-port?"
                ) from None


def _connect(cluster: str) -> None:
    """:raises UserError: where Ray or Python are of another version, or no process can be had there"""
    import ray

    for attempt in range(RETRIES + 1):
        try:
            ray.init(
                cluster,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                runtime_env={"env_vars": _environment()},
            )
            return
        except ConnectionAbortedError:  # the head's fork of a process for this client fails now and then
            if attempt == RETRIES:
                raise UserError(f"the head of {cluster} does not start a process for this client") from None
        except (ConnectionError, RuntimeError) as error:
            raise UserError(f"{cluster} cannot be used: {' '.join(str(error).split())}") from None


def _environment() -> dict[str, str]:
    """Of the workers: the caller's modules, and threads as the caller's own processes have."""
    paths = [
        path
        for path in map(os.path.abspath, sys.path)
        if not any(Path(path).is_relative_to(python) for python in (sys.prefix, sys.base_prefix))
    ]
    return {
        "PYTHONPATH": os.pathsep.join([*paths, "${PYTHONPATH}"]),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _count(cluster: str) -> int:
    """How many pieces are computed at once; :raises UserError: for none, or machines that cannot be used"""
    import ray
    from ray.exceptions import RaySystemError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with going_away(cluster, ConnectionError, RaySystemError):
        nodes = {
            node["NodeID"]: int(node["Resources"]["CPU"])
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        }
        if not nodes:
            raise UserError(
                f"{cluster} has no workers: start some, ray start --address HOST:6379 --num-cpus 16"
            )
        ask = _remote(_refusal, num_cpus=0)  # does not wait for what others compute there
        asked = [
            ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                _bytes((own_code(),))
            )
            for node in nodes
        ]
        for refusal in (_result(cluster, reference) for reference in asked):
            if refusal is not None:
                raise refusal
    return sum(nodes.values())


def _refusal(code: Code) -> UserError | None:
    """What :func:`check_code` raises: Ray would wrap it up."""
    try:
        check_code(code)
    except UserError as error:
        return error
    return None


def _bytes(value: Any) -> bytes:
    from ray import cloudpickle

    return cloudpickle.dumps(value)


def _remote(function: Callable, **options: Any) -> Any:
    """The function on a worker: arguments and result in bytes."""
    import ray

    pickled = _bytes(function)

    def compute(arguments: bytes) -> bytes:
        from ray import cloudpickle

        return cloudpickle.dumps(cloudpickle.loads(pickled)(*cloudpickle.loads(arguments)))

    return ray.remote(**options)(compute)


def _result(cluster: str, reference: Any) -> Any:
    """:raises UserError: where the worker does not have the function"""
    import ray
    from ray import cloudpickle

    try:
        return cloudpickle.loads(ray.get(reference))
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"a worker of {cluster} lacks what it is to compute ({getattr(error, 'cause', error)}): install "
            "the same on all machines"
        ) from None


def _outcomes(cluster: str, task: Callable, work: Iterator[tuple]) -> Iterator:
    import ray
    from ray.exceptions import (
        NodeDiedError,
        ObjectLostError,
        OutOfMemoryError,
        RaySystemError,
        WorkerCrashedError,
    )

    remote = _remote(task, num_cpus=1, max_retries=RETRIES)

    def hand_over(count: int) -> list:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are many
            return [remote.remote(_bytes(piece)) for piece in itertools.islice(work, count)]

    with going_away(cluster, ConnectionError, RaySystemError):
        running = hand_over(WAITING)
        while running:
            (done,), running = ray.wait(running)
            try:
                outcome = _result(cluster, done)
            except (WorkerCrashedError, OutOfMemoryError, NodeDiedError, ObjectLostError):
                outcome = KILLED
            yield outcome
            running += hand_over(1)
