"""Tables whose density is modelled: the published preprocessing on made-up files; the other sets' facts."""

from __future__ import annotations

import dataclasses
import gzip
import tarfile

import numpy as np
import pytest
from scipy import stats

from data_loaders import DataError, densities, load_density
from data_loaders.densities import DENSITIES, six_gaussians, two_gaussians


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A ZOO_DATA folder of made-up originals; what is returned puts one there and says what comes out."""
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))

    def put(name, features, rows, **arrays):
        entry = dataclasses.replace(DENSITIES[name], features=features, rows=rows)
        monkeypatch.setattr(densities, "DENSITIES", {name: entry})
        for file, array in arrays.items():
            path = (tmp_path / entry.file).with_stem(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".csv":
                np.savetxt(path, array, delimiter=",", header="x")
            else:
                np.save(path, array)
        return entry

    return put


def table(rows, columns, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns))


@pytest.mark.parametrize("law", [two_gaussians(), six_gaussians()])
def test_laws_are_those_of_their_draws(law):
    x = law.draw(20_000, seed=1)
    mean = law.weights @ law.means
    assert (abs(x.mean(0) - mean) < 4.5 * x.std(0) / 20_000**0.5).all()
    of_law = sum(
        weight * (root @ root.T + np.outer(m - mean, m - mean))
        for weight, m, root in zip(law.weights, law.means, law.roots, strict=True)
    )
    products = (x - mean)[:, :, None] * (x - mean)[:, None, :]
    assert (abs(products.mean(0) - of_law) < 4.5 * products.std(0) / 20_000**0.5).all()
    assert np.array_equal(law.draw(5, seed=1), law.draw(5, seed=1))
    if x.shape[1] == 2:
        axis = np.arange(-8, 8, 0.1)
        grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
        assert np.exp(law.log_density(grid)).sum() * 0.01 == pytest.approx(1, abs=1e-6)
    with pytest.raises(DataError, match="cannot draw 0"):
        law.draw(0, 0)


@pytest.mark.parametrize("law", [two_gaussians(3.0, 0.5), six_gaussians(3)])
def test_densities_of_mixtures_are_those_of_their_components(law):
    x = law.draw(20, seed=2)
    logs = [
        np.log(weight) + stats.multivariate_normal(mean, root @ root.T).logpdf(x)
        for weight, mean, root in zip(law.weights, law.means, law.roots, strict=True)
    ]
    np.testing.assert_allclose(law.log_density(x), np.logaddexp.reduce(logs, axis=0), rtol=1e-10)


def test_six_gaussians_are_as_wide_as_it_says():
    """And none is flat: every direction has a variance of 0.3 at least.  Sixty means have an sd of 2, known
    to a share of 1 / sqrt(120).
    """
    assert six_gaussians().means.std(ddof=1) == pytest.approx(2, rel=4 / 120**0.5)
    covariances = np.array([root @ root.T for root in six_gaussians().roots])
    sds = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    assert 0.6 < sds.min() < 0.7
    assert 1.1 < sds.max() < 1.2
    assert 0.3 < np.linalg.eigvalsh(covariances).min() < 0.35


def test_grids_are_blurred_by_their_step(monkeypatch):
    """By half a step to either side; what is continuous stays, what has few values goes."""
    rng = np.random.default_rng(0)
    grid, smooth, few = 0.1 * rng.integers(100, size=4000), rng.normal(size=4000), rng.integers(9, size=4000)
    monkeypatch.setattr(densities, "_stored", lambda _: {"X": np.column_stack([smooth, few]), "y": grid})
    monkeypatch.setattr(densities, "_shuffled", lambda _, table, columns: (table, columns))
    found, columns = densities._table(DENSITIES["kin40k"])
    assert columns == ("x1", "y")
    np.testing.assert_array_equal(found[:, 0], smooth)
    share = (found[:, 1] - grid) / 0.1
    assert abs(share).max() <= 0.5 + 1e-9
    assert abs(share.mean()) < 4.5 * (1 / 12 / 4000) ** 0.5
    assert share.std() == pytest.approx(12**-0.5, rel=4.5 * 0.45 / 4000**0.5)  # kurtosis 1.8: sd of a sd


def test_a_column_of_which_a_few_values_repeat_is_no_grid(monkeypatch):
    """It stays as it is, down to a tenth as many values as rows; from there on it is blurred."""
    some, few = np.arange(4000) % 400 / 10, np.arange(4000) % 399 / 10
    monkeypatch.setattr(densities, "_stored", lambda _: {"X": some[:, None], "y": few})
    monkeypatch.setattr(densities, "_shuffled", lambda _, table, columns: table)
    found = densities._table(DENSITIES["kin40k"])
    np.testing.assert_array_equal(found[:, 0], some)
    assert (found[:, 1] != few).all()


def test_a_column_of_fifty_values_has_a_density_and_one_of_fewer_has_none(monkeypatch):
    columns = np.column_stack([np.arange(4000) % 49, np.arange(4000) % 50])
    monkeypatch.setattr(densities, "_stored", lambda _: {"X": columns, "y": np.linspace(0, 1, 4000)})
    monkeypatch.setattr(densities, "_shuffled", lambda _, table, names: names)
    assert densities._table(DENSITIES["kin40k"]) == ("x2", "y")


@pytest.mark.parametrize("name", ["mixture-2", "mixture-10"])
def test_mixtures_need_no_file(name, monkeypatch):
    monkeypatch.delenv("ZOO_DATA", raising=False)
    data = load_density(name)
    assert data.law is not None
    assert len(data.columns) == data.train.shape[1]
    assert not np.array_equal(data.train[:50], data.validation[:50])


@pytest.mark.parametrize("name", ["bsds300-patches", "sachs", "protein", "elevators", "kin40k"])
def test_stand_ins(name, mirror):
    data = load_density(name)
    whole = np.vstack([data.train, data.validation])
    assert np.isfinite(whole).all()
    assert (whole.std(0) > 0).all()
    if name != "bsds300-patches":
        np.testing.assert_allclose(whole.mean(0), 0, atol=1e-9)
        np.testing.assert_allclose(whole.std(0), 1)
    else:  # a Gaussian of all training rows has 96.0, the published file 96.67
        centred = data.test - data.train.mean(0)
        covariance = np.cov(data.train.T)
        z = np.linalg.solve(covariance, centred.T)
        fit = -0.5 * ((centred * z.T).sum(1) + np.linalg.slogdet(2 * np.pi * covariance)[1])
        assert fit.mean() == pytest.approx(96.0, abs=0.3)


def test_copied_rows_are_said(mirror):
    """The others have none."""
    for name in ("protein", "sachs", "elevators", "kin40k"):
        data = load_density(name)
        known = {row.tobytes() for row in np.concatenate([data.train, data.validation])}
        copies = sum(row.tobytes() in known for row in data.test)
        said = [oddity for oddity in data.oddities if "copies" in oddity]
        assert said == ([f"{copies} test rows are copies of training or validation rows"] if copies else [])


def test_power(suite):
    raw = np.random.default_rng(0).random((50, 8))
    suite("power", 6, (41, 4, 5), data=raw)
    data = load_density("power")
    # the published code, line by line
    rng, x = np.random.RandomState(42), raw.copy()
    rng.shuffle(x)
    x = np.delete(np.delete(x, 3, axis=1), 1, axis=1)
    voltage, gap = 0.01 * rng.rand(50, 1), 0.001 * rng.rand(50, 1)
    x = x + np.hstack((gap, voltage, rng.rand(50, 3), np.zeros((50, 1))))
    x = (x - x[:45].mean(0)) / x[:45].std(0)
    np.testing.assert_allclose(np.vstack([data.train, data.validation, data.test]), x)


def test_miniboone_loses_columns_whose_smallest_value_is_repeated(suite):
    raw = table(60, 5)
    raw[:6, 2] = -9.0  # six ties: gone; five in the next column stay
    raw[:5, 3] = -9.0
    raw[10:15, 4] = 9.0
    raw[0, 0], raw[-3:, 0] = -100.0, -999.0
    suite("miniboone", 4, (47, 5, 5), data=raw)
    data = load_density("miniboone")
    kept = raw[:57][:, [0, 1, 3, 4]]
    kept = (kept - kept[:52].mean(0)) / kept[:52].std(0)
    np.testing.assert_allclose(np.vstack([data.train, data.validation, data.test]), kept)


def test_hepmass_keeps_the_signal(suite):
    train, test = table(40, 4), table(20, 5, seed=1)
    train[:, 0], test[:, 0] = np.arange(40) % 2, np.arange(20) % 2
    entry = suite("hepmass", 3, (18, 2, 10))
    folder = densities.mirror_folder() / "maf" / "hepmass"
    folder.mkdir(parents=True)
    np.savetxt(folder / "1000_train.csv", train, delimiter=",", header="x")
    np.savetxt(folder / "1000_test.csv", test, delimiter=",", header="x")
    data = load_density(entry.name)
    signal = train[train[:, 0] == 1][:, 1:]
    np.testing.assert_allclose(data.test, (test[test[:, 0] == 1][:, 1:4] - signal.mean(0)) / signal.std(0))


def test_gas_drops_the_first_of_columns_that_agree(suite):
    raw = np.column_stack([table(50, 3), table(50, 3, seed=1)])
    near = raw[:, 3] + 0.3 * raw[:, 5]  # a correlation below 0.98: both stay
    raw = np.column_stack([raw, raw[:, 4] + 0.01 * raw[:, 5], near])
    assert 0.92 < np.corrcoef(raw[:, 3], near)[0, 1] < 0.97
    suite("gas", 4, (41, 4, 5), ethylene_CO=raw)
    data = load_density("gas")
    kept = raw[:, [3, 5, 6, 7]]
    np.testing.assert_allclose(
        np.vstack([data.train, data.validation, data.test]), (kept - kept.mean(0)) / kept.std(0)
    )


def packed(folder, data: np.ndarray):
    """The archive in the cache, with the file of miniboone."""
    np.save(folder / "data.npy", data)
    archive = folder / "cache" / "maf" / "data.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / "data.npy", "data/miniboone/data.npy")
    return archive


def test_a_member_is_taken_out_of_the_archive(suite, tmp_path):
    suite("miniboone", 3, (17, 1, 2))
    packed(tmp_path, data=np.abs(table(20, 3)))
    assert load_density("miniboone").train.shape == (17, 3)
    assert (tmp_path / "cache" / "maf" / "miniboone" / "data.npy").is_file()


def test_what_cannot_be_loaded_says_why(suite, tmp_path):
    with pytest.raises(DataError, match="unknown density set 'sach'; did you mean sachs"):
        load_density("sach")
    suite("power", 6, (1, 1, 1), data=table(50, 8))
    with pytest.raises(DataError, match=r"power: \(41, 4, 5\) rows of 6 columns came out"):
        load_density("power")
    suite("gas", 8, (1, 1, 1))
    with pytest.raises(DataError, match="pickle, which is not opened here"):
        load_density("gas")
    suite("hepmass", 8, (1, 1, 1))
    archive = packed(tmp_path, data=table(20, 3))
    with pytest.raises(DataError, match="holds no hepmass/1000_train.csv"):
        load_density("hepmass")
    assert archive.is_file()


@pytest.mark.parametrize("damage", ["cut", "flipped", "checksum", "appended", "garbage"])
def test_a_damaged_archive_is_refused_with_the_remedy(damage, suite, tmp_path):
    """The numbers themselves may come out whole: the checksum of all is at its end."""
    suite("miniboone", 3, (17, 1, 2))
    archive = packed(tmp_path, data=np.abs(table(20, 3)))
    whole = archive.read_bytes()
    middle = len(whole) // 2
    archive.write_bytes(
        {
            "cut": whole[:-20],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :],
            "checksum": whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:],
            "appended": whole + gzip.compress(b"")[:10] + 20 * b"\xff",  # what zlib itself refuses
            "garbage": b"nothing",
        }[damage]
    )
    for _ in range(2):
        with pytest.raises(DataError, match="cut short or altered .*: delete it, and the same call gets it"):
            load_density("miniboone")
    assert [path for path in archive.parent.rglob("*") if path.is_file()] == [archive]
    packed(tmp_path, data=np.abs(table(20, 3)))
    assert load_density("miniboone").train.shape == (17, 3)


def test_an_archive_that_a_browser_has_unpacked_is_one(suite, tmp_path):
    suite("miniboone", 3, (17, 1, 2))
    archive = packed(tmp_path, data=np.abs(table(20, 3)))
    archive.write_bytes(gzip.decompress(archive.read_bytes()))
    assert load_density("miniboone").train.shape == (17, 3)


def test_a_damaged_head_of_the_last_file_is_no_absence(suite, tmp_path):
    """tarfile takes it for the end; the checksum of all tells."""
    suite("miniboone", 3, (17, 1, 2))
    archive = packed(tmp_path, data=np.abs(table(20, 3)))
    whole = bytearray(gzip.decompress(archive.read_bytes()))
    first = tarfile.TarInfo("first").tobuf()
    second = bytes([whole[0] ^ 1]) + bytes(whole[1:])
    stored = gzip.compress(first + bytes(whole))
    archive.write_bytes(gzip.compress(first + second)[:-8] + stored[-8:])  # the sum of what it was
    with pytest.raises(DataError, match="cut short or altered"):
        load_density("miniboone")


def test_tables_of_another_shape_and_files_of_others_are_told(suite, monkeypatch):
    suite("power", 6, (41, 4, 5), data=table(50, 6))
    with pytest.raises(DataError, match=r"cannot read .*power/data.npy .*right one in its place"):
        load_density("power")

    def locked(*arguments, **others):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(np, "load", locked)
    with pytest.raises(DataError, match=r"power: cannot read .*data.npy \(PermissionError: .*\)$"):
        load_density("power")


def test_what_cannot_be_unpacked_blames_no_archive(suite, tmp_path):
    suite("miniboone", 3, (17, 1, 2))
    archive = packed(tmp_path, data=np.abs(table(20, 3)))
    (archive.parent / "miniboone").write_text("no folder")
    with pytest.raises(DataError, match=r"cannot unpack .*FileExistsError"):
        load_density("miniboone")
    assert archive.is_file()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("power", "power/data.npy"),
        ("miniboone", "miniboone/data.npy"),
        ("gas", "gas/ethylene_CO.npy"),
        ("hepmass", "hepmass/1000_train.csv"),
        ("bsds300", "BSDS300/BSDS300.hdf5"),
    ],
)
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"a,b\n1,x\n"])
def test_a_damaged_file_of_the_suite_is_named(name, file, content, suite):
    entry = suite(name, 6, (1, 1, 1))
    assert entry.file == f"maf/{file}"
    path = densities.mirror_folder() / entry.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: .*cannot read .*{path.name} .*put the right one in"):
        load_density(name)
