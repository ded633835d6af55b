"""A Ray cluster of processes of its own: what holds for Dask's (``test_clusters``) holds for it."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.zoo.cli_helpers import run_zoo
from tests.zoo.experiments.runner_helpers import (
    results,
    rows,
    start_zoo,
    wait_for,
    without_seconds,
)
from tests.zoo.experiments.toy_experiments import CELLS, declare, slow
from tests.zoo.fitting.cluster_checks import assert_nothing_left, assert_results_are_those_of_this_machine
from tests.zoo.fitting.ray_pieces import dies, global_numbers, loses_a_connection, refuses
from zoo.errors import UserError
from zoo.experiments.engine.request import plan
from zoo.experiments.engine.runner import reproduce
from zoo.fitting import ray_cluster
from zoo.fitting.clusters import workers
from zoo.fitting.side_by_side import CallEndedError, Here

pytest.importorskip("ray", reason="Ray has no wheel for this Python or machine")
grpc = pytest.importorskip("grpc", reason="Ray brings it")


# ------------------------------------------------------------------------------------------ refused in a line


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("localhost", 0))  # and does not listen
        address = f"ray://localhost:{free.getsockname()[1]}"
        with (
            pytest.raises(UserError, match=f"no cluster answers at {address} .*refused"),
            workers(1, address),
        ):
            pytest.fail("connected")


def test_what_listens_is_no_head(monkeypatch):
    """It says nothing; what speaks another language is told apart sooner."""
    monkeypatch.setattr(ray_cluster, "PATIENCE", 0.2)
    with socket.create_server(("localhost", 0)) as server:
        address = f"ray://localhost:{server.getsockname()[1]}"
        with (
            pytest.raises(UserError, match=f"what listens at {address} is no head of Ray .* 10001"),
            workers(1, address),
        ):
            pytest.fail("connected")


def test_threads_of_channels_that_are_closed_die_in_silence(monkeypatch):
    """As Ray closes them when a head is gone, now and then a moment before gRPC looks at them again."""
    told = []
    hook = ray_cluster._AllButClosedChannels(lambda died: told.append(str(died.exc_value)))
    monkeypatch.setattr(threading, "excepthook", hook)

    def fails():
        raise ValueError("of another thread")

    with socket.create_server(("localhost", 0)) as server:
        channel = grpc.insecure_channel(f"localhost:{server.getsockname()[1]}")
        before = set(threading.enumerate())
        channel.subscribe(lambda _: None)
        (watching,) = set(threading.enumerate()) - before
        channel._channel.close(grpc._cython.cygrpc.StatusCode.cancelled, "closed under the thread")
        watching.join(timeout=20)
        assert not watching.is_alive()
        other = threading.Thread(target=fails)
        other.start()
        other.join()
    assert told == ["of another thread"]


# --------------------------------------------------------------------------------------------- a real cluster


def free_ports(count: int) -> list[int]:
    """Of those that no connection is given by chance, as one may be before the head comes to its port."""
    with contextlib.ExitStack() as taken:
        found: list[int] = []
        for port in random.Random(os.getpid()).sample(range(20_000, 32_000), 100):
            with contextlib.suppress(OSError):
                taken.enter_context(socket.create_server(("localhost", port)))
                found.append(port)
            if len(found) == count:
                return found
    pytest.fail(f"{len(found)} of 100 ports are free")


def of_session(leader: int) -> list[psutil.Process]:
    """All processes that a process has started, theirs too: its session, which no other has."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture(scope="module")
def head():
    """The address of a cluster of two workers, and the first of its processes.

    In a folder of its own: below pytest's the names of its sockets may be longer than the 107 bytes that they
    can have, as numbers of runs and processes grow.
    """
    ports = free_ports(9)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary:
        for attempt in range(3):  # one that does not answer has lost a port, or a process that it waits for
            address, process, said = start(*ports[3 * attempt : 3 * attempt + 3], Path(temporary))
            try:
                if answers_soon(address, process):
                    yield address, process
                    return
            finally:
                stop(process)
        pytest.fail(f"no head has answered in three attempts; the last said: {said.read_text()}")


def start(place: int, client: int, agent: int, temporary: Path) -> tuple[str, subprocess.Popen, Path]:
    options = {
        "--port": place,
        "--ray-client-server-port": client,
        "--dashboard-agent-listen-port": agent,
        "--num-cpus": 2,
        "--include-dashboard": "false",
        "--object-store-memory": 80_000_000,
        "--temp-dir": temporary,
    }
    pairs = [str(text) for pair in options.items() for text in pair]
    command = ["-m", "ray.scripts.scripts", "start", "--head", "--block", *pairs, "--disable-usage-stats"]
    said = temporary / "said.txt"
    with said.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            env={
                **os.environ,
                "RAY_worker_niceness": "0",
                "GRPC_ENABLE_FORK_SUPPORT": "0",
                "TOY_SECONDS": "2.0",  # of a cell of `slow`: workers have the environment of the head
            },
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return f"ray://localhost:{client}", process, said


def answers_soon(address: str, process: subprocess.Popen) -> bool:
    """Three seconds where nothing else runs, 13 beside ten busy processes."""
    end = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < end:
        if answers(address):
            return True
    return False


def stop(process: subprocess.Popen) -> None:
    while left := of_session(process.pid):  # one may be starting another
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.poll()
    process.wait()


@pytest.fixture(scope="module")
def pool(head):
    with workers(1, head[0]) as found:
        assert found.count == 2
        assert isinstance(threading.excepthook, ray_cluster._AllButClosedChannels)
        yield found


def answers(address: str) -> bool:
    time.sleep(0.3)
    host, port = address.removeprefix("ray://").split(":")
    try:
        ray_cluster._knock(address, host, int(port))
    except UserError:
        return False
    return True


@pytest.mark.slow
def test_results_are_those_of_this_machine(pool, monkeypatch, tmp_path):
    assert_results_are_those_of_this_machine(pool, global_numbers, monkeypatch, tmp_path)


@pytest.mark.slow
def test_killed_workers_cost_what_they_are_at(pool, monkeypatch, tmp_path):
    """A piece whose worker is killed is tried again; one that kills each is left for the next call."""
    monkeypatch.setattr(ray_cluster, "RETRIES", 1)
    request = plan(declare("toy/dies", dies))
    out = tmp_path / "out"
    for name in "ab":
        (tmp_path / f"deadly-{name}").touch()
    with pytest.raises(CallEndedError, match="1 of 24 pieces lost one worker after another, .*tries them"):
        reproduce(request, out, workers=pool)
    assert len(results(out)) == CELLS - 1
    assert (out / "table.md").exists()
    computed = (tmp_path / "log.txt").read_text().splitlines()
    assert (len(computed), len(set(computed))) == (CELLS + 2, CELLS)
    (tmp_path / "deadly-b").unlink()
    assert reproduce(request, out, workers=pool).reused == CELLS - 1
    reproduce(request, tmp_path / "here", workers=Here())
    assert without_seconds(tmp_path / "here") == without_seconds(out)
    assert_nothing_left(out)


@pytest.mark.slow
def test_what_a_cell_raises_is_its_own(pool, tmp_path):
    with pytest.raises(UserError, match="trial 0: the file is missing"):
        reproduce(plan(declare(run=refuses), trials=1), tmp_path / "out", workers=pool)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConnectionError, match="a download"):
        list(pool.results_of(loses_a_connection, [(0,)], tmp_path))


@pytest.mark.slow
def test_other_versions_are_refused(pool, monkeypatch):
    own = ray_cluster.own_code()
    other = replace(own, versions={**own.versions, "torch": "9.9"})
    monkeypatch.setattr(ray_cluster, "own_code", lambda: other)
    with pytest.raises(UserError, match=r"torch is \S+ there, 9.9 here; install the same"):
        ray_cluster._count(pool.name)


@pytest.mark.slow
def test_code_that_workers_do_not_have(pool, monkeypatch):
    function = ray_cluster._refusal
    monkeypatch.setattr(function, "__module__", "test_nowhere")
    monkeypatch.setitem(sys.modules, "test_nowhere", ray_cluster)
    with pytest.raises(UserError, match="lacks what it is to compute .*'test_nowhere'.*: install the same"):
        ray_cluster._count(pool.name)


@pytest.mark.slow
def test_two_clusters_at_once_are_refused(pool):
    with (
        pytest.raises(UserError, match=r"has a Ray cluster already; ray.shutdown\(\)"),
        workers(1, pool.name),
    ):
        pytest.fail("connected")


@pytest.mark.slow
def test_the_port_of_the_cluster_is_not_that_for_clients(head, pool, monkeypatch, tmp_path):
    """The one that ``ray start`` tells first."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    arguments = head[1].args
    port = arguments[arguments.index("--port") + 1]
    address = f"ray://localhost:{port}"
    result = run_zoo("reproduce", "example/dice", "--cluster", address, "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"{address} is no head of Ray waiting for clients" in result.stderr


@pytest.mark.slow
def test_a_head_that_goes_away_leaves_what_is_finished(head, pool, monkeypatch, tmp_path):
    """The last test, for it ends the cluster."""
    address, process = head
    out = tmp_path / "out"
    monkeypatch.setenv("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "2")
    call = start_zoo("toy/slow", "--cluster", address, "--out", out)  # 24 s of work for two workers
    wait_for(lambda: len(results(out)) >= 3, seconds=120)
    stop(process)
    stdout, stderr = call.communicate(timeout=120)
    assert (call.returncode, stdout) == (1, "")
    assert stderr == (
        f"zoo: the cluster {address} went away; when it is back, the same command goes on from what is "
        "finished\n"
    )
    assert (out / "table.md").exists()
    finished = len(results(out))
    assert 3 <= finished < CELLS
    assert all(float(row["seconds"]) >= 2 for row in rows(out))  # so that none had time for all
    outcome = reproduce(plan(declare("toy/slow", slow)), out)
    assert finished <= outcome.reused <= finished + 2  # those which the workers were at
    reproduce(plan(declare("toy/slow", slow)), tmp_path / "whole")
    assert without_seconds(out) == without_seconds(tmp_path / "whole")
