"""Saved guides: a fresh process reads the same fit, and a kill leaves the old one whole."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from guides import (
    AutoConcrete,
    AutoDropout,
    AutoGroupNormalJeffreys,
    AutoMeanField,
    AutoMNF,
    AutoSpikeSlab,
    AutoSpikeSlabMVN,
)
from guides.posterior.files import load_guide, save_guide, write_atomically
from guides.testing import (
    data,
    fit,
    linear_model,
    network,
    normal,
)
from tests.guides.battery import CASES, each_case
from tests.guides.core.test_kinds_of_models import constrained_model
from zoo.files.output import HALVES

ROOT = Path(__file__).parents[3]


def in_fresh_process(code: str, *arguments) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


@pytest.mark.one_in(3)
@each_case
def test_a_fresh_guide_reads_the_same_fit(case, tmp_path):
    x, y = data()
    model = network(case.prior)
    guide = case.make(model)
    fit(model, guide, x, y, steps=1)
    save_guide(guide, tmp_path / "fit.safetensors")
    fresh = load_guide(case.make(model), tmp_path / "fit.safetensors")
    draws = guide.draws(3, seed=5)
    torch.testing.assert_close(fresh.draws(3, seed=5), draws, rtol=0, atol=0)
    torch.testing.assert_close(fresh.quantiles([0.6]), guide.quantiles([0.6]), rtol=0, atol=0)
    assert torch.equal(fresh.log_prob(draws), guide.log_prob(draws))


@pytest.mark.slow
def test_a_fresh_process_reads_the_same_fits(tmp_path):
    """All cases in one process: identical draws, quantiles and log-densities, from guides never called."""
    x, y = data()
    expected = {}
    for case in CASES:
        model = network(case.prior)
        guide = case.make(model)
        fit(model, guide, x, y, steps=3)
        save_guide(guide, tmp_path / f"{case}.safetensors")
        draws = guide.draws(3, seed=5)
        expected[case.name] = [draws, guide.quantiles([0.1, 0.6]), guide.log_prob(draws)]
    code = """
        import sys, torch
        from pathlib import Path
        from guides.testing import network
        from tests.guides.battery import CASES
        from guides.posterior.files import load_guide
        folder, found = Path(sys.argv[1]), {}
        for case in CASES:
            guide = load_guide(case.make(network(case.prior)), folder / f"{case}.safetensors")
            draws = guide.draws(3, seed=5)
            found[case.name] = [draws, guide.quantiles([0.1, 0.6]), guide.log_prob(draws)]
        torch.save(found, folder / "found.pt")
    """
    result = in_fresh_process(code, tmp_path)
    assert result.returncode == 0, result.stderr
    torch.testing.assert_close(torch.load(tmp_path / "found.pt"), expected, rtol=0, atol=0)


@pytest.mark.one_in(3)
@each_case
def test_a_loaded_guide_goes_on(case):
    x, y = data()
    model = network(case.prior)
    guide = case.make(model)
    fit(model, guide, x, y, steps=2)
    fresh = case.make(model)
    fresh.load_state_dict(guide.state_dict())
    before = fresh.draws(2, seed=1)
    fresh(x, y)  # looks at the model again, and keeps the parameters
    assert all(torch.equal(value, before[name]) for name, value in fresh.draws(2, seed=1).items())
    assert fresh.sites == guide.sites
    fit(model, fresh, x, y, steps=2)
    assert not torch.equal(fresh.draws(2, seed=1)["w1"], before["w1"])


def test_loading_into_a_guide_in_use_fills_its_parameters():
    """An optimiser holds them."""
    x, y = data()
    model = network(normal)
    guide = AutoMeanField(model)
    fit(model, guide, x, y, steps=2)
    best, held = (
        {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in guide.state_dict().items()},
        guide.loc,
    )
    fit(model, guide, x, y, steps=2)
    guide.load_state_dict(best)
    assert guide.loc is held
    assert torch.equal(guide.loc, best["loc"])


def test_supports_are_learned_after_loading():
    y = torch.randn(6, 2)
    guide = AutoMeanField(constrained_model)
    guide.setup(y)
    fresh = AutoMeanField(constrained_model)
    fresh.load_state_dict(guide.state_dict())
    for question in (lambda: fresh.draws(2), lambda: fresh.median(), lambda: fresh.log_prob(guide.draws(2))):
        with pytest.raises(RuntimeError, match=r"call guide\.setup\(\*args\)"):
            question()
    fresh.setup(y)
    expected = guide.draws(2, seed=3)
    assert all(torch.equal(value, expected[name]) for name, value in fresh.draws(2, seed=3).items())


def test_another_models_parameters_are_refused(tmp_path):
    x, y = data()
    guide = AutoMeanField(network(normal))
    guide.setup(x, y)
    for model, site in ((network(normal, hidden=5), "w1"), (linear_model(normal), "w")):
        other = AutoMeanField(model)
        other.load_state_dict(guide.state_dict())
        with pytest.raises(ValueError, match=f"site '{site}'"):
            other(x, y)


def test_a_guide_of_another_class_is_refused_by_both_names(tmp_path):
    x, y = data()
    saved = AutoMeanField(network(normal))
    saved.setup(x, y)
    save_guide(saved, tmp_path / "fit.safetensors")
    kinds = [AutoConcrete, AutoDropout, AutoGroupNormalJeffreys, AutoMNF, AutoSpikeSlab, AutoSpikeSlabMVN]
    for kind in kinds:
        with pytest.raises(ValueError, match=f"saved guide is an AutoMeanField, this one an {kind.__name__}"):
            load_guide(kind(network(normal)), tmp_path / "fit.safetensors")


def test_damaged_files_are_refused_by_name(tmp_path):
    guide = AutoMeanField(network(normal))
    path = tmp_path / "fit.safetensors"
    with pytest.raises(ValueError, match="no parameters to save"):
        save_guide(guide, path)
    guide.setup(*data())
    save_guide(guide, path)
    content = path.read_bytes()
    for damaged in (content[:-10], content[:5], b"", b"x" * 100):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"fit\.safetensors is truncated"):
            load_guide(AutoMeanField(network(normal)), path)


@pytest.mark.slow
def test_a_kill_during_saving_leaves_the_old_file(tmp_path):
    path = tmp_path / "fit.safetensors"
    guide = AutoMeanField(network(normal))
    guide.setup(*data())
    save_guide(guide, path)
    old = path.read_bytes()
    code = """
        import os, signal, sys
        from guides.posterior.files import write_atomically
        def write(target):
            with open(target, "wb") as file:
                file.write(b"half")
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        write_atomically(sys.argv[1], write)
    """
    assert in_fresh_process(code, path).returncode == -signal.SIGKILL
    assert path.read_bytes() == old
    load_guide(AutoMeanField(network(normal)), path)


def written(text):
    return lambda target: Path(target).write_text(text)


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "below").mkdir()
    for name in ("there", "not yet there"):
        file, link = tmp_path / "below" / name, tmp_path / f"link to {name}"
        link.symlink_to(Path("below") / name)
        if name == "there":
            file.write_text("old")
        write_atomically(link, written("new"))
        assert link.is_symlink()
        assert (file.is_symlink(), file.read_text()) == (False, "new")
    assert len(list((tmp_path / "below").iterdir())) == 2


def test_a_pipe_is_refused_and_stays(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(OSError, match="not a regular file") as caught:
            write_atomically(path, written("new"))
        assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(path))
    assert pipe.is_fifo()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder: name a file in it") as caught:
        write_atomically(tmp_path, lambda target: pytest.fail("written"))
    assert caught.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    path = tmp_path / "new" / "file"

    def write(target):
        Path(target).write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, write)
    assert list(path.parent.iterdir()) == []


def test_what_safetensors_cannot_write_is_an_os_error(tmp_path):
    def write(target):
        save_file({"loc": torch.zeros(1)}, Path(target).with_name("none") / "file")

    with pytest.raises(OSError, match="No such file") as error:
        write_atomically(tmp_path / "fit.safetensors", write)
    assert error.value.filename == str(tmp_path / "fit.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o002, 0o664), (0o022, 0o644)])
def test_who_may_read_a_file_the_umask_says(mask, mode, tmp_path):
    x, y = data()
    model = network(normal)
    guide = AutoMeanField(model)
    fit(model, guide, x, y, steps=1)
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "text", written("new"))
        save_guide(guide, tmp_path / "fit.safetensors")
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == mode


def test_half_a_file_has_the_name_by_which_it_is_removed(tmp_path):
    write_atomically(tmp_path / "file.txt", lambda target: Path(target).write_text(Path(target).name))
    assert HALVES.fullmatch((tmp_path / "file.txt").read_text())
