"""Containers, files and diagnostics of the ArviZ boundary."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import xarray as xr

from guides.posterior import arviz_io
from guides.posterior.arviz_io import (
    arrays_of,
    decode_attrs,
    ess,
    group_names,
    load_netcdf,
    mcse,
    rhat,
    save_netcdf,
    to_arviz,
    with_groups,
)
from guides.posterior.fingerprint import fingerprint

RNG = np.random.default_rng(0)
POSTERIOR = {"w": RNG.standard_normal((2, 50, 3)), "tau": RNG.random((2, 50))}
ATTRS = {"passed": True, "nested": {"a": [1, 2.5, None]}, "n": 3, "x": 1.5, "text": "é", "list": ["a"]}


def everything():
    return to_arviz(
        POSTERIOR,
        sample_stats={"diverging": np.zeros((2, 50), bool)},
        posterior_predictive={"y": RNG.standard_normal((2, 50, 4))},
        log_likelihood={"y": RNG.standard_normal((2, 50, 4))},
        observed_data={"y": np.arange(4.0)},
        constant_data={"X": np.ones((4, 3), np.float32)},
        attrs=ATTRS,
        coords={"feature": ["a", "b", "c"]},
        dims={"w": ["feature"], "X": ["row", "feature"]},
    )


def test_round_trip_keeps_groups_values_dtypes_labels_and_attributes(tmp_path):
    idata = everything()
    back = load_netcdf(save_netcdf(idata, tmp_path / "deep" / "fit.nc"))
    for group in ("posterior", "sample_stats", "posterior_predictive", "log_likelihood", "observed_data"):
        for name, values in idata[group].data_vars.items():
            np.testing.assert_array_equal(back[group][name].values, values.values)
            assert back[group][name].dims == values.dims
            assert back[group][name].dtype == values.dtype
    assert back["posterior"]["w"].dims == ("chain", "draw", "feature")
    assert list(back["posterior"]["feature"].values) == ["a", "b", "c"]
    assert back["constant_data"]["X"].dtype == np.float32
    assert decode_attrs(back) == ATTRS
    assert os.listdir(tmp_path / "deep") == ["fit.nc"]


def test_names_that_no_netcdf_may_have_come_back(tmp_path):
    sites = {name: np.zeros((2, 5)) for name in ("a/b", "a%2Fb", "a%b", "ab")}
    assert set(arrays_of(load_netcdf(save_netcdf(to_arviz(sites), tmp_path / "fit.nc")), "posterior")) == set(
        sites
    )


def test_groups_are_added_and_replaced():
    before = everything()
    data = {"y": np.arange(4.0, 8.0)}
    after = with_groups(before, {"prior": {"w": np.zeros((1, 7, 3))}, "observed_data": data})
    assert set(group_names(after)) == {*group_names(before), "prior"}
    assert after["prior"]["w"].shape == (1, 7, 3)
    np.testing.assert_array_equal(after["observed_data"]["y"], data["y"])
    np.testing.assert_array_equal(after["posterior"]["w"], POSTERIOR["w"])
    assert decode_attrs(after) == ATTRS
    thinned = {"log_likelihood": {"y": np.zeros((2, 10, 4))}}
    kept = with_groups(before, thinned, coords={"draw": range(0, 50, 5)})["log_likelihood"]["draw"]
    assert list(kept.values) == list(range(0, 50, 5))


def test_a_fit_without_chains_says_so():
    assert "is_mcmc" not in everything().attrs
    one = {"w": np.zeros((1, 5, 2))}
    assert to_arviz(one).attrs["is_mcmc"] == "false"
    assert to_arviz(one, attrs={"is_mcmc": "true"}).attrs["is_mcmc"] == "true"


def test_attributes_of_numpy_are_numbers_of_python(tmp_path):
    """Also those that a file gives back, which JSON may be asked to hold again."""
    attrs = {"n": np.int64(3), "x": np.float32(0.5), "passed": np.bool_(True), "list": [1]}
    idata = to_arviz(POSTERIOR, attrs=attrs)
    for found in (idata, load_netcdf(save_netcdf(idata, tmp_path / "fit.nc"))):
        decoded = decode_attrs(found)
        assert decoded == {"n": 3, "x": 0.5, "passed": True, "list": [1]}
        assert [type(decoded[name]) for name in attrs] == [int, float, bool, list]


def test_bad_shapes_are_refused_by_name():
    with pytest.raises(ValueError, match="no site"):
        to_arviz({})
    with pytest.raises(ValueError, match="posterior/b"):
        to_arviz({"a": np.zeros((2, 5)), "b": np.zeros((2, 6))})
    with pytest.raises(ValueError, match="posterior/a"):
        to_arviz({"a": np.zeros(5)})
    with pytest.raises(ValueError, match="dims names 2 dimensions of 'w'"):
        to_arviz(POSTERIOR, dims={"w": ["a", "b"]})
    with pytest.raises(ValueError, match="site 'draw' has the name of a dimension"):
        to_arviz({"draw": np.zeros((2, 5))})
    clash = {"w": np.zeros((2, 5, 3)), "w_dim_0": np.zeros((2, 5))}
    with pytest.raises(ValueError, match="site 'w_dim_0' has the name of a dimension"):
        to_arviz(clash)
    assert set(to_arviz(clash, dims={"w": ["column"]})["posterior"].data_vars) == {"w", "w_dim_0"}


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "flipped", "other netCDF"])
def test_an_unreadable_file_is_one_line_that_names_it(tmp_path, damage):
    path = save_netcdf(everything(), tmp_path / "fit.nc")
    content = path.read_bytes()
    if damage == "other netCDF":
        xr.Dataset({"a": ("x", np.zeros(3))}).to_netcdf(path, engine="h5netcdf")
    elif damage == "flipped":  # bytes of the stored numbers: the checksum must notice
        at = content.find(stored_bytes(path))
        path.write_bytes(content[: at + 9] + bytes([content[at + 9] ^ 255]) + content[at + 10 :])
    else:
        half = content[: len(content) // 2]
        path.write_bytes({"truncated": half, "text": b"not netCDF", "empty": b""}[damage])
    with pytest.raises(ValueError, match="fit.nc") as caught:
        load_netcdf(path)
    assert "\n" not in str(caught.value)


def stored_bytes(path):
    """The stored bytes of the draws of w."""
    import h5py

    with h5py.File(path) as file:
        return file["posterior/w"].id.read_direct_chunk((0, 0, 0))[1]


def test_a_file_that_was_read_can_be_written_again(tmp_path):
    """HDF5 opens no file for writing that is still open for reading."""
    path = save_netcdf(to_arviz(POSTERIOR, attrs={"n": 3}), tmp_path / "a.nc")
    kept = load_netcdf(path)
    xr.Dataset(attrs={"more": 1}).to_netcdf(path, mode="a", engine="h5netcdf")
    assert decode_attrs(load_netcdf(path)) == {"n": 3, "more": 1}
    assert decode_attrs(kept) == {"n": 3}


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_netcdf(tmp_path / "none.nc")


def test_an_error_while_saving_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = save_netcdf(to_arviz(POSTERIOR, attrs={"version": 1}), tmp_path / "fit.nc")

    def half(idata, filename):
        filename.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(arviz_io, "_write", half)
    with pytest.raises(KeyboardInterrupt):
        save_netcdf(to_arviz(POSTERIOR, attrs={"version": 2}), path)
    assert decode_attrs(load_netcdf(path)) == {"version": 1}
    assert os.listdir(tmp_path) == ["fit.nc"]


@pytest.mark.slow
def test_a_process_killed_while_saving_leaves_the_old_file(tmp_path):
    path = save_netcdf(to_arviz(POSTERIOR, attrs={"version": 1}), tmp_path / "fit.nc")
    code = (
        "import os, sys, numpy as np; from guides.posterior import arviz_io; write = arviz_io._write\n"
        "def killed(idata, filename): write(idata, filename); os._exit(9)\n"
        "arviz_io._write = killed\n"
        "arviz_io.save_netcdf(arviz_io.to_arviz({'w': np.zeros((2, 9))}), sys.argv[1])"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 9
    assert decode_attrs(load_netcdf(path)) == {"version": 1}


# ------------------------------------------------------------------------------------------------ diagnostics


def test_diagnostics_know_the_effective_size_of_an_autoregression():
    """AR(1) with correlation r: ESS = n (1 - r)/(1 + r), MCSE of the mean = sd / sqrt(ESS)."""
    n, r = 20_000, 0.6
    x = RNG.standard_normal((2, n, 3))
    for t in range(1, n):
        x[:, t] = r * x[:, t - 1] + np.sqrt(1 - r**2) * x[:, t]
    truth = 2 * n * (1 - r) / (1 + r)
    for method in ("bulk", "mean"):
        np.testing.assert_allclose(ess(x, method), truth, rtol=0.15)
    np.testing.assert_allclose(mcse(x), 1 / np.sqrt(truth), rtol=0.1)
    # (x - mean)^2 of a normal AR(1) is autocorrelated like r^2
    squares = 2 * n * (1 - r**2) / (1 + r**2)
    np.testing.assert_allclose(mcse(x, "sd"), np.sqrt(2 / squares) / 2, rtol=0.1)
    assert rhat(x).shape == (3,)
    assert np.all(rhat(x) < 1.005)
    assert ess(x.reshape(2, n, 3, 1), "tail").shape == (3, 1)


def test_diagnostics_see_chains_that_disagree_in_place_or_in_spread():
    x = RNG.standard_normal((2, 500, 3))
    x[1, :, 0] += 1
    x[1, :, 1] *= 3
    assert rhat(x)[0] > 1.1
    assert rhat(x)[1] > 1.05
    assert rhat(x)[2] < 1.02
    drift = RNG.standard_normal((2, 500)) + np.linspace(0, 3, 500)  # split chains
    assert rhat(drift) > 1.2


def test_values_that_never_move_stick_or_are_not_finite():
    x = RNG.standard_normal((2, 100, 4))
    x[..., 0] = 2.0
    x[0, :, 1], x[1, :, 1] = 1.0, 2.0
    x[0, 5, 2] = np.nan
    np.testing.assert_array_equal(rhat(x)[:3], [np.nan, np.inf, np.nan])
    np.testing.assert_array_equal(ess(x)[:3], [np.nan, 0, np.nan])
    for method in ("mean", "sd"):
        np.testing.assert_array_equal(mcse(x, method)[:3], [0, np.inf, np.nan])
    assert np.isfinite([rhat(x)[3], ess(x)[3], mcse(x)[3]]).all()
    x[1, 3, 3] = np.inf
    assert np.isnan(rhat(x)[3])


def test_a_chain_that_sticks_beside_one_that_moves_has_numbers():
    x = RNG.standard_normal((2, 100))
    x[0] = x[1, 0]
    assert 1 < rhat(x) < np.inf
    assert ess(x) > 0
    assert 0 < mcse(x) < np.inf


def test_error_of_the_sd_is_that_of_squares_about_the_mean_of_all_chains():
    x = RNG.standard_normal((2, 500))
    x[1] += 3
    assert mcse(x, "sd") == pytest.approx(mcse((x - x.mean()) ** 2) / (2 * x.std()))


@pytest.mark.parametrize("shape", [(1, 100), (2, 3)])
def test_few_chains_or_draws_are_refused(shape):
    with pytest.raises(ValueError, match="chain >= 2, draw >= 4"):
        rhat(np.arange(np.prod(shape)).reshape(shape))


# ------------------------------------------------------------------------------------------------ fingerprint

FACTOR = 2.0


def helper(x):
    return FACTOR * x


def test_fingerprint_follows_content_not_identity():
    x = np.arange(6.0)
    assert fingerprint(x, {"a": 1, "b": [x]}) == fingerprint(x.copy(), {"b": [x.copy()], "a": 1})
    others = [x.astype("f4"), x.reshape(2, 3), x + 1e-12, x[::-1], [*x], x[:5]]
    assert len({fingerprint(o) for o in [x, *others]}) == len(others) + 1

    def closure(value):
        return lambda draws: draws["w"] * value

    assert fingerprint(closure(x)) == fingerprint(closure(x.copy()))
    assert fingerprint(closure(x)) != fingerprint(closure(x + 1))


def test_fingerprint_sees_what_a_function_uses(monkeypatch):
    def model(x, scale=1.0):
        return helper(x) * scale

    before = fingerprint(model)
    assert fingerprint(model) == before
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    assert fingerprint(model) != before
    monkeypatch.undo()
    model.__defaults__ = (2.0,)
    assert fingerprint(model) != before


def test_fingerprint_refuses_what_it_cannot_read():
    with pytest.raises(TypeError, match="cannot fingerprint"):
        fingerprint(iter([1]))


def test_a_function_that_uses_torch_itself_has_a_fingerprint():
    """The module ``torch`` has a function ``detach``, and is no array for that."""

    def function(x):
        return torch.square(x)

    assert fingerprint(function) == fingerprint(function)


def test_arviz_is_imported_again_where_another_process_took_its_file(tmp_path, monkeypatch):
    """ArviZ 0.23 moves a file at its first import of a day."""
    (tmp_path / "arviz.py").write_text(
        "from pathlib import Path\n"
        "met = Path(__file__).with_name('met')\n"
        "if not met.exists():\n"
        "    met.touch()\n"
        "    raise FileNotFoundError('daily_warning.tmp')\n"
    )
    monkeypatch.delitem(sys.modules, "arviz", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    found = arviz_io.import_arviz.__wrapped__()
    assert (tmp_path / "met").exists()
    assert found.__file__ == str(tmp_path / "arviz.py")
    del sys.modules["arviz"]  # what was there comes back
