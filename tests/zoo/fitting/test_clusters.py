"""Clusters: the results are those of this machine, what is lost is computed again, what is wrong is one line.

The slow tests have a real Dask cluster, a scheduler and processes of workers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from pyro import distributions as dist

import zoo.commands.calibrate
import zoo.commands.leaderboard
from guides import PosteriorBootstrap
from tests.zoo.cli_helpers import linear_rows, make_tiny, run_zoo, write_csv
from tests.zoo.experiments.runner_helpers import (
    ROOT,
    results,
    start_zoo,
    wait_for,
    without_seconds,
)
from tests.zoo.experiments.toy_experiments import CELLS, declare, measure, random_numbers, slow
from tests.zoo.fitting.cluster_checks import assert_nothing_left, assert_results_are_those_of_this_machine
from zoo.commands.calibration import ask
from zoo.errors import UserError
from zoo.experiments.engine.request import plan
from zoo.experiments.engine.runner import reproduce
from zoo.fitting import cluster_tasks, dask_cluster
from zoo.fitting.cluster_tasks import check_code, check_folder, own_code
from zoo.fitting.clusters import workers
from zoo.fitting.side_by_side import CallEndedError, Here


def connect(jobs: int, cluster: str) -> None:
    with workers(jobs, cluster):
        pytest.fail("connected")


# ------------------------------------------------------------------------------------------ refused in a line


@pytest.mark.parametrize(
    "cluster", ["slurm://a:1", "dask://a", "dask://:8786", "dask://a:b", "ray://a", "tcp://a:1", ""]
)
def test_addresses_that_are_none(cluster):
    with pytest.raises(
        UserError, match=f"--cluster is dask://HOST:PORT, ray://HOST:PORT or auto, not '{cluster}'"
    ):
        connect(1, cluster)


@pytest.mark.parametrize(("cluster", "package", "extra"), [
    ("auto", "distributed", "cluster"), ("dask://a:1", "distributed", "cluster"), ("ray://a:1", "ray", "ray"),
])  # fmt: skip
def test_a_package_that_is_missing(cluster, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        UserError, match=rf"{cluster} needs {package}: pip install 'posterior-zoo\[{extra}\]'"
    ):
        connect(1, cluster)


@pytest.mark.parametrize(
    ("jobs", "words"), [(0, "--jobs must be at least 1"), (2, "--jobs is for this machine")]
)
def test_jobs_that_do_not_fit(jobs, words):
    with pytest.raises(UserError, match=words):
        connect(jobs, "dask://localhost:8786")


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("localhost", 0))  # and does not listen
        port = free.getsockname()[1]
        with pytest.raises(UserError, match=f"no cluster answers at dask://localhost:{port} .*refused"):
            connect(1, f"dask://localhost:{port}")


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-server\r\n"])
def test_what_listens_is_no_scheduler(greeting, monkeypatch):
    monkeypatch.setattr(cluster_tasks, "PATIENCE", 0.2)
    with socket.create_server(("localhost", 0)) as server:
        greeter = Thread(target=greet, args=(server, greeting))
        greeter.start()
        with pytest.raises(UserError, match="what listens at dask://localhost:.* is no Dask scheduler"):
            connect(1, f"dask://localhost:{server.getsockname()[1]}")
        greeter.join()


def greet(server: socket.socket, greeting: bytes) -> None:
    with server.accept()[0] as line:
        line.sendall(greeting)
        line.recv(1)  # until the other side is gone


@pytest.mark.parametrize("command", [
    "reproduce example/dice", "compare diabetes --splits 2", "leaderboard --datasets diabetes --guides map",
    "calibrate --widths 0 --noise 1",
])  # fmt: skip
def test_every_command_knows_clusters(command, tmp_path):
    result = run_zoo(*command.split(), "--cluster", "slurm://a:1", "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert "--cluster is dask://HOST:PORT, ray://HOST:PORT or auto, not 'slurm://a:1'" in result.stderr
    assert not (tmp_path / "out").exists()
    text = " ".join(run_zoo(command.split()[0], "--help").stdout.replace("│", "").split())
    assert "--cluster" in text
    assert "share the folder --out" in text


def test_one_comparison_needs_no_cluster(tmp_path):
    result = run_zoo("compare", "diabetes", "--cluster", "auto", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "--cluster is for several --splits or --seeds" in result.stderr
    with pytest.raises(UserError, match="--cluster is for several --splits or --seeds"):
        zoo.compare("diabetes", cluster="auto")
    with pytest.raises(UserError, match="--jobs is for several --splits or --seeds"):
        zoo.compare("diabetes", jobs=2)


def test_a_cluster_that_goes_away_while_its_workers_are_counted():
    from distributed.comm import CommClosedError

    def gone(*arguments):
        raise CommClosedError

    alive = {
        "wait_for_workers": lambda *args, **options: None,
        "nthreads": lambda: {"w": 1},
        "run": lambda *a: None,
    }
    for lost in ("nthreads", "run"):
        client = SimpleNamespace(**{**alive, lost: gone})
        with pytest.raises(CallEndedError, match="dask://a:1 went away"):
            dask_cluster._count("dask://a:1", client)
    assert dask_cluster._count("dask://a:1", SimpleNamespace(**alive)) == 1


def test_worker_with_other_code():
    own = own_code()
    check_code(own)
    with pytest.raises(UserError, match=r"torch is \S+ there, 9.9 here; install the same"):
        check_code(replace(own, versions={**own.versions, "torch": "9.9"}, source="another"))
    with pytest.raises(UserError, match="of the same version has other code there"):
        check_code(replace(own, source="another"))


def test_worker_without_the_folder(tmp_path):
    with cluster_tasks._token(tmp_path) as token:
        check_folder(token)
        for other in (replace(token, text="another"), replace(token, path=tmp_path / "elsewhere" / "token")):
            with pytest.raises(UserError, match=f"cannot write to {other.path.parent}: .*all machines share"):
                check_folder(other)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------- a real cluster


@pytest.fixture(scope="module")
def pool():
    with workers(2, "auto") as found:
        assert found.count == 2
        yield found


@pytest.fixture(scope="module")
def address(pool):
    """The scheduler's, as another call would name it."""
    return pool.outcomes.args[1].scheduler.address.replace("tcp", "dask")


def global_numbers(cell) -> dict[str, float]:
    """But for Python's own generator, of which a thread of Dask's draws too."""
    error = random_numbers(cell)["error"]  # leaves a file
    return {"error": np.random.rand() + (error > 0), "score": torch.randn(300, 300).sum().item()}


@pytest.mark.slow
def test_results_are_those_of_this_machine(pool, monkeypatch, tmp_path):
    assert_results_are_those_of_this_machine(pool, global_numbers, monkeypatch, tmp_path)


@pytest.mark.slow
def test_calibration_is_that_of_this_machine(pool, tmp_path):
    asked = ask("spike-slab-linear", ["exact"], simulations=4, draws=20, rows=8, columns=2)
    tables = [
        zoo.commands.calibrate.run(asked, tmp_path / name, workers=found)
        for name, found in (("here", Here()), ("there", pool))
    ]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert (tmp_path / "here" / "ranks.csv").read_bytes() == (tmp_path / "there" / "ranks.csv").read_bytes()


@pytest.mark.slow
def test_leaderboard_is_that_of_this_machine(pool, monkeypatch, tmp_path):
    make_tiny(monkeypatch)
    monkeypatch.setattr("zoo.commands.leaderboard.plot_leaderboard", lambda *args: None)
    table = str(write_csv(tmp_path / "table.csv", linear_rows(30)))
    asked = zoo.commands.leaderboard.plan([table], ["varbvs"], model="spike-slab-linear", splits=2)
    for name, found in (("here", Here()), ("there", pool)):
        zoo.commands.leaderboard.run(asked, tmp_path / name, found)
    for name in ("leaderboard.csv", "runs.csv", "differences.csv"):
        here, there = (
            pd.read_csv(tmp_path / place / name).drop(columns=["cpu_seconds", "fit_seconds"], errors="ignore")
            for place in ("here", "there")
        )
        pd.testing.assert_frame_equal(here, there, check_exact=True)
    assert_nothing_left(tmp_path / "there")


def reads_a_value(y: torch.Tensor) -> None:
    """Not for ``vmap``: draws are minimised alone."""
    mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean if mean.item() < 1e9 else -mean, 1.0), obs=y)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not at their minimum")
def test_bootstrap_is_that_of_this_machine(pool):
    y = torch.randn(20)
    bootstrap = PosteriorBootstrap(reads_a_value)
    here = bootstrap.fit(y, num_draws=4, steps=9).draws()
    with joblib.parallel_config("dask", client=pool.outcomes.args[1]):
        there = bootstrap.fit(y, num_draws=4, steps=9).draws()
    assert torch.equal(here["mean"], there["mean"])


def dies_once(cell) -> dict[str, float]:
    with (cell.folder.parents[1] / "log.txt").open("a") as log:
        log.write(f"{cell.name}\n")
    deadly = cell.folder.parents[1] / "deadly"
    if (cell.dataset, cell.trial, cell.method, cell.setting) == ("b", 1, "m", "5") and deadly.exists():
        deadly.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(cell)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_running_cell(pool, tmp_path):
    toy = declare("toy/dies_once", dies_once)
    out = tmp_path / "there"
    out.mkdir()
    reproduce(plan(toy, datasets=["a"]), out, workers=pool)
    (out / "deadly").touch()
    outcome = reproduce(plan(toy), out, workers=pool)
    assert (len(outcome.records), outcome.reused, outcome.failed) == (CELLS, CELLS // 2, [])
    computed = (out / "log.txt").read_text().splitlines()
    assert len(set(computed)) == CELLS
    assert len(computed) == CELLS + 1
    reproduce(plan(toy), tmp_path / "here")
    assert without_seconds(tmp_path / "here") == without_seconds(out)
    assert_nothing_left(out)


def dies(cell) -> dict[str, float]:
    if cell.dataset == "b" and cell.trial == 1 and (cell.folder.parents[1] / "deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(cell)


@pytest.mark.slow
def test_a_cell_that_kills_every_worker_is_left_for_the_next_call(pool, tmp_path):
    client = pool.outcomes.args[1]
    toy = declare("toy/dies", dies)
    out = tmp_path / "out"
    request = plan(toy, methods=["m"], settings=["5"])
    reproduce(plan(toy, datasets=["a"], methods=["m"], settings=["5"]), out, workers=pool)
    (out / "deadly").touch()
    client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 0))
    try:
        with pytest.raises(
            CallEndedError, match=r"[12] of 3 pieces lost one worker after another, .*tries them"
        ):
            reproduce(request, out, workers=pool)
    finally:
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 3))
    assert len(results(out)) in (4, 5)  # two pieces may have been with the worker, one of them waiting
    assert (out / "table.md").exists()
    (out / "deadly").unlink()
    assert len(reproduce(request, out, workers=pool).records) == 6


def refuses(cell) -> dict[str, float]:
    raise UserError("the file is missing")


def ends_in_a_timeout(cell) -> dict[str, float]:
    raise TimeoutError("a download took too long")


@pytest.mark.slow
def test_what_a_cell_raises_is_its_own(pool, tmp_path):
    with pytest.raises(UserError, match="trial 0: the file is missing"):
        reproduce(plan(declare(run=refuses), trials=1), tmp_path / "out", workers=pool)
    assert not (tmp_path / "out").exists()
    with pytest.raises(TimeoutError, match="a download"):
        list(pool.results_of(ends_in_a_timeout, [(0,)], tmp_path))


@pytest.mark.slow
def test_mixed_versions_are_one_line(address, monkeypatch, tmp_path):
    own = own_code()
    other = replace(own, versions={**own.versions, "torch": "9.9", "python": "3.99"})
    monkeypatch.setattr(dask_cluster, "own_code", lambda: other)
    result = run_zoo("reproduce", "example/dice", "--cluster", address, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert f"python is {own.versions['python']} there, 3.99 here; torch is" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_folder_that_is_not_shared_is_one_line(address, monkeypatch, tmp_path):
    token = cluster_tasks.Token(Path("/nowhere/at/all/token"), "")
    monkeypatch.setattr(cluster_tasks, "_token", lambda folder: contextlib.nullcontext(token))
    result = run_zoo("reproduce", "example/dice", "--cluster", address, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "cannot write to /nowhere/at/all: with --cluster, --out is a folder that" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_workers_of_several_threads_are_refused(address, monkeypatch):
    monkeypatch.setattr("distributed.Client.nthreads", lambda self: {"a": 1, "b": 4})
    with pytest.raises(UserError, match="has 4 threads, .*--nthreads 1"):
        connect(1, address)


# ----------------------------------------------------------------------------------- a cluster that goes away


def start(*command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_a_scheduler_that_goes_away_leaves_what_is_finished(monkeypatch, tmp_path):
    """Its processes have nothing in common with the caller but the folder."""
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"
    out = tmp_path / "out"
    monkeypatch.setenv("TOY_SECONDS", "0.3")
    scheduler = start("distributed.cli.dask_scheduler", "--port", place[10:], "--no-dashboard")
    worker = start("distributed.cli.dask_worker", place, "--nthreads", "1", "--no-dashboard", "--no-nanny")
    try:
        wait_for(lambda: not connection_fails(place))
        call = start_zoo("toy/slow", "--cluster", f"dask://{place}", "--out", out)
        wait_for(lambda: len(results(out)) >= 3)
        scheduler.kill()
        stdout, stderr = call.communicate(timeout=60)
        assert (call.returncode, stdout) == (1, "")
        assert stderr == (
            f"zoo: the cluster dask://{place} went away; when it is back, the same command goes on from what "
            "is finished\n"
        )
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()
    assert (out / "table.md").exists()
    finished = len(results(out))
    assert 3 <= finished < CELLS
    outcome = reproduce(plan(declare("toy/slow", slow)), out)
    assert finished <= outcome.reused <= finished + 1  # that which the worker was at
    monkeypatch.setenv("TOY_SECONDS", "0")
    reproduce(plan(declare("toy/slow", slow)), tmp_path / "whole")
    assert without_seconds(out) == without_seconds(tmp_path / "whole")


def connection_fails(place: str) -> bool:
    time.sleep(0.1)
    host, port = place.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return True
    return False
