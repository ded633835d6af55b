"""Where files come from (ZOO_DATA, cache, network) and what happens when they are damaged."""

from __future__ import annotations

import io
import json
import shutil
import zipfile

import numpy as np
import pytest

from data_loaders import DataError, fetch, load
from data_loaders.catalogue.lookup import entry
from data_loaders.errors import short_reason
from data_loaders.originals import shipped


def _text(table, comma=False):
    rows = np.atleast_2d(np.asarray(table, dtype=np.float64).T).T.tolist()
    return "".join((", " if comma else " ").join(map(repr, row)) + "\n" for row in rows).encode()


def _zip(value):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        entry = zipfile.ZipInfo("data.json")  # of a fixed date: the archive is the same at any time
        archive.writestr(entry, json.dumps(value), zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _original(name, file):
    """The bytes of the original files of a set, written from the arrays of its ready-made file."""
    if name.startswith("posteriordb"):
        data = {key.removeprefix("data_"): file[key].tolist() for key in file if key.startswith("data_")}
        names = file["param_names"].tolist()
        chains = [dict(zip(names, chain.T.tolist(), strict=True)) for chain in file["draws"]]
        return [_zip(data), _zip(chains)]
    if name == "naval":
        return [_text(np.column_stack([file["X"], file["y"], file["unused_columns"]]))]
    if name == "snelson":
        return [_text(file[key]) for key in ("x_train", "y_train", "x_test")]
    if name == "bimodal":
        return [_text(file["train"]), _text(file["test"])]
    if name == "us_crime":
        return [_text(np.column_stack([file["X"][:, 1:], file["y"]]), comma=True), _text(file["X"][:, 0])]
    if "mjmcmc" in name:
        return [_text(file["X"], comma=True), _text(file["y"])]
    return [_text(np.column_stack([file["X"], file["y"]]))]


@pytest.fixture
def publish(server, change_entry):
    """Puts the given files of a set on the server, at addresses like the real ones."""

    def put(name, files):
        paths = ["/some%20folder/" + address.rsplit("/", 1)[1] for address in entry(name).addresses]
        server.pages.update(zip(paths, files, strict=True))
        change_entry(name, addresses=tuple(server.address + path for path in paths))
        return paths

    return put


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name",
    [
        "boston",
        "naval",
        "snelson",
        "bimodal",
        "us_crime",
        "mjmcmc_sim_linear",
        "mjmcmc_sim_logistic",
        "posteriordb_kidiq_interaction",
        "posteriordb_logmesquite",
    ],
)
def test_download_gives_what_the_ready_made_file_gives(
    name, stored, publish, server, no_mirror, monkeypatch, mirror
):
    publish(name, _original(name, stored(name)))
    downloaded = load(name)
    asked = len(server.asked)
    assert asked == len(entry(name).addresses)
    again = load(name)
    assert len(server.asked) == asked, "the second time must be served by the cache"
    assert fetch(name) == no_mirror / name
    monkeypatch.setenv("ZOO_DATA", str(mirror))
    expected = load(name)
    assert len(server.asked) == asked
    assert fetch(name) == mirror / entry(name).file
    for data in (downloaded, again):
        for key in ("x_train", "y_train", "x_test", "y_test"):
            np.testing.assert_array_equal(getattr(data, key), getattr(expected, key))
        assert data.feature_names == expected.feature_names
        assert data.oddities == expected.oddities
        assert data.extras.keys() == expected.extras.keys()
        for key, value in expected.extras.items():
            np.testing.assert_array_equal(data.extras[key], value)
    assert not list(no_mirror.rglob("tmp*"))


def _damage(raw, how):
    if how == "cut":
        return raw[: len(raw) // 2]
    if how == "cut in a row":
        return raw[:-200]
    if how == "one digit":
        place = raw.index(b"6", len(raw) // 2)  # among the data
        return raw[:place] + b"7" + raw[place + 1 :]
    return {"nothing": b"", "a page": b"<html><body>sign in</body></html>", "comments": b"# gone\n"}[how]


@pytest.mark.parametrize("how", ["cut", "cut in a row", "one digit", "nothing", "a page", "comments"])
@pytest.mark.parametrize("name", ["boston", "posteriordb_kidiq_interaction"])
def test_damaged_download_is_refused_and_not_kept(name, how, stored, publish, no_mirror):
    files = _original(name, stored(name))
    paths = publish(name, [_damage(files[0], how), *files[1:]])
    with pytest.raises(DataError, match="fails its checksum") as caught:
        load(name)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{name}: ")
    assert paths[0] in message
    assert "ZOO_DATA" in message
    assert not [path for path in no_mirror.rglob("*") if path.is_file()]
    publish(name, files)
    assert load(name).x_train.size


def test_altered_json_is_refused(stored, publish, no_mirror):
    name = "posteriordb_kidiq_interaction"
    data, draws = _original(name, stored(name))
    for altered in ([], {"N": 434}, [{"beta[1]": ["x"]}], [{"beta[1]": [1.0]}, {}]):
        publish(name, [data, _zip(altered)])
        with pytest.raises(DataError, match="fails its checksum"):
            load(name)


def test_damaged_cache_is_replaced(stored, publish, server, no_mirror):
    publish("boston", _original("boston", stored("boston")))
    first = load("boston")
    file = no_mirror / "boston" / "data.txt"
    file.write_bytes(file.read_bytes()[:-50])
    np.testing.assert_array_equal(load("boston").x_train, first.x_train)
    assert len(server.asked) == 2
    file.write_bytes(b"")
    server.pages.clear()
    with pytest.raises(DataError, match="cannot get .*404"):
        load("boston")


def test_connection_that_breaks_off(stored, publish, server, no_mirror):
    publish("boston", _original("boston", stored("boston")))
    server.lie_about_length = True
    with pytest.raises(DataError, match="boston: cannot get http"):
        load("boston")
    assert not [path for path in no_mirror.rglob("*") if path.is_file()]


def test_a_cache_that_cannot_be_written_is_no_fault_of_the_network(no_mirror, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="boston: cannot write to .*file.*; set ZOO_CACHE to a folder"):
        fetch("boston")


def test_no_network(server, change_entry, no_mirror):
    address = server.address + "/data.txt"
    change_entry("boston", addresses=(address,))
    server.close()
    with pytest.raises(DataError, match="connect to the network, or set ZOO_DATA") as caught:
        fetch("boston")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    assert message.startswith("boston: cannot get " + address)
    assert "uci/boston.npz" in message


@pytest.mark.parametrize("name", ["heteroscedastic"])
def test_sets_without_an_address_say_what_to_do(name, no_mirror):
    with pytest.raises(
        DataError, match="cannot be downloaded .*set ZOO_DATA to a folder that holds"
    ) as caught:
        load(name)
    assert "\n" not in str(caught.value)
    assert entry(name).file in str(caught.value)


def test_zoo_data_that_is_no_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="ZOO_DATA names .*nowhere, which is not a folder"):
        load("boston")
    assert load("diabetes").x_train.size


def test_set_that_the_folder_lacks_is_downloaded(stored, publish, no_mirror, monkeypatch, tmp_path):
    publish("boston", _original("boston", stored("boston")))
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    assert fetch("boston") == no_mirror / "boston"


@pytest.mark.parametrize("how", ["cut short", "one byte", "empty", "other set"])
def test_damaged_file_of_zoo_data(how, mirror, monkeypatch, tmp_path):
    source = mirror / "uci" / "yacht.npz"
    raw = source.read_bytes()
    target = tmp_path / "uci" / "yacht.npz"
    target.parent.mkdir()
    shutil.copy(source, target)
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    assert load("yacht").x_train.shape == (277, 6)
    middle = len(raw) // 2
    altered = {
        "cut short": raw[:middle],
        "one byte": raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :],
        "empty": b"",
        "other set": (mirror / "uci" / "boston.npz").read_bytes(),
    }
    target.write_bytes(altered[how])
    with pytest.raises(DataError, match="fails its checksum .*copy it anew") as caught:
        load("yacht")
    assert str(target) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_scikit_learn_with_other_numbers(change_entry):
    change_entry("diabetes", content="0" * 64)
    with pytest.raises(DataError, match="diabetes: .*scikit-learn.*checksum"):
        load("diabetes")


@pytest.mark.parametrize("name", ["raisin", "gallstone"])
def test_sets_that_ship_with_us_need_nothing(name, no_mirror):
    assert load(name).x_train.size
    assert fetch(name).name == f"{name}.csv"
    assert not no_mirror.exists()
    assert "CC BY 4.0" in entry(name).licence
    assert f"{name}.csv" in (fetch(name).parent / "SOURCES.txt").read_text()
    assert fetch(name).stat().st_size < 200_000


@pytest.mark.parametrize("name", ["raisin", "gallstone"])
def test_sets_that_ship_with_us_are_those_of_the_folder(name, mirror):
    """The numbers that every result up to now was computed from."""
    data = load(name)
    with np.load(mirror / "varsel" / f"{name}.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(data.x_train, file["X"])
        np.testing.assert_array_equal(data.y_train, file["y"])
        assert data.feature_names == tuple(file["feature_names"].tolist())
        assert data.target_name == str(file["target_name"])


@pytest.mark.parametrize("how", ["missing", "cut", "cut in a row", "one digit", "nothing", "a page"])
def test_damaged_file_that_ships_with_us(how, monkeypatch, tmp_path):
    raw, damaged = fetch("raisin").read_bytes(), tmp_path / "raisin.csv"
    if how != "missing":
        damaged.write_bytes(_damage(raw, how))
    monkeypatch.setattr(shipped, "file_of", lambda entry: damaged)
    with pytest.raises(DataError, match="raisin: .*; install posterior-zoo anew") as caught:
        load("raisin")
    assert "\n" not in str(caught.value)
    assert str(damaged) in str(caught.value)


def test_generated_and_bundled_sets_have_a_place(no_mirror):
    assert fetch("piecewise").name == "toy.py"
    assert fetch("digits").is_dir()


def test_reasons_are_cut_short():
    assert short_reason(OSError("no\n route")) == "OSError: no route"
    assert short_reason(OSError()) == "OSError"
    assert short_reason(OSError("x" * 1000), limit=20) == "OSError: " + "x" * 17 + "..."
