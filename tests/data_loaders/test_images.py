"""Sets of images: the IDX format, where the files come from, splits and scale."""

from __future__ import annotations

import gzip
import hashlib
import struct

import numpy as np
import pytest

from data_loaders import DataError, Standardizer, describe, fetch, images, load
from data_loaders.catalogue.lookup import entry
from data_loaders.images import _Md5, _scaled, read_idx
from data_loaders.originals.parsing import RawError

NAMES = ("mnist", "fashion_mnist", "kmnist")
#: The first rows of the stand-in test set of KMNIST: the split never changes.
STAND_IN_TEST_ROWS = [2328, 2711, 5359]
PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


# ------------------------------------------------------------------------------------------------ real files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mean", "sd"), [("mnist", 0.1307, 0.3081), ("fashion_mnist", 0.2860, 0.3530)]
)
def test_official_split_and_known_moments(name, mean, sd, mirror):
    data, facts = load(name), describe(name)
    assert (data.x_train.shape, data.x_test.shape) == ((60_000, 784), (10_000, 784))
    assert data.x_train.dtype == data.x_test.dtype == np.float32
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)
    assert data.x_train.mean(dtype=float) == pytest.approx(mean, abs=5e-5)
    assert data.x_train.std(dtype=float) == pytest.approx(sd, abs=5e-5)
    assert np.bincount(data.y_test).sum() == 10_000
    assert (data.num_classes, data.num_features) == (10, facts.features)
    assert (data.task, facts.splits, facts.protocols) == ("multiclass", 1, ("standard", "whole"))
    assert len(data.y_train) + len(data.y_test) == facts.rows
    assert (data.image_shape, facts.image_shape) == ((28, 28), (28, 28))
    assert data.oddities == facts.oddities
    np.testing.assert_array_equal(data.extras["rows_test"], np.arange(60_000, 70_000))
    assert len(set(data.feature_names)) == 784


@pytest.mark.slow
def test_pixels_run_row_by_row_and_labels_belong_to_their_images(mirror):
    data = load("mnist")
    assert data.y_train[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    first = data.x_train[0].reshape(data.image_shape)
    assert data.feature_names[28 * 5 + 12] == "pixel_5_12"
    assert round(float(first[5, 12]) * 255) == 3  # where the first training image begins
    assert not first[:5].any()
    # a digit is far closer to the mean of its own class: images and labels are not out of step
    means = np.stack([data.x_train[data.y_train == k].mean(0) for k in range(10)])
    distance = (means**2).sum(1) - 2 * data.x_test @ means.T
    assert (distance.argmin(1) == data.y_test).mean() > 0.8


def test_kmnist_without_training_images_splits_the_test_images(mirror, monkeypatch, tmp_path):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    if (mirror / "images" / "kmnist-train-images-idx3-ubyte.gz").exists():
        pytest.skip("the training images are here")
    data, again, whole = load("kmnist"), load("kmnist"), load("kmnist", protocol="whole")
    assert (data.x_train.shape, data.x_test.shape) == ((8000, 784), (2000, 784))
    assert "8000 of the 10000 test images train" in data.oddities[-1]
    assert data.oddities[:-1] == describe("kmnist").oddities
    np.testing.assert_array_equal(data.extras["rows_train"], again.extras["rows_train"])
    rows = np.concatenate([data.extras["rows_train"], data.extras["rows_test"]])
    np.testing.assert_array_equal(np.sort(rows), np.arange(10_000))
    assert whole.x_train.shape == (10_000, 784)
    np.testing.assert_array_equal(whole.x_train[data.extras["rows_test"]], data.x_test)
    np.testing.assert_array_equal(whole.y_train[data.extras["rows_train"]], data.y_train)
    assert np.bincount(data.y_test).min() > 150
    assert data.extras["rows_test"][:3].tolist() == STAND_IN_TEST_ROWS


def test_files_that_are_at_hand_are_fetched_without_a_network(mirror, no_mirror, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(mirror))
    assert fetch("mnist") == mirror / "images"
    assert not no_mirror.exists()


# -------------------------------------------------------------------------------------------- standardisation


def test_images_are_not_standardised_and_keep_their_type(mirror):
    data = load("kmnist")
    scale = Standardizer.of(data)
    x = scale.transform_x(data.x_test)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, data.x_test)
    assert not np.shares_memory(x, data.x_test)
    np.testing.assert_array_equal(scale.transform_y(data.y_test), data.y_test)
    back = Standardizer.from_dict(scale.to_dict())
    np.testing.assert_array_equal(back.transform_x(data.x_test), data.x_test)
    assert back.transform_x(data.x_test.astype(float)).dtype == np.float64
    with pytest.raises(DataError, match="784"):
        scale.transform_x(data.x_test[:, :-1])


def test_other_sets_are_standardised_as_before():
    data = load("digits")
    assert (data.image_shape, data.prescaled) == ((8, 8), False)
    fitted = Standardizer.fit(data.x_train, data.y_train, task=data.task)
    assert Standardizer.of(data).to_dict() == fitted.to_dict()
    assert load("diabetes").image_shape is None
    # float32 rows meet a fitted scale in float64, as ever
    assert fitted.transform_x(data.x_test.astype(np.float32)).dtype == np.float64


# ------------------------------------------------------------------------------------------------- IDX format


def _idx(values, magic=None, shape=None):
    values = np.asarray(values, dtype=np.uint8)
    head = magic or bytes([0, 0, 8, values.ndim])
    return head + b"".join(struct.pack(">I", n) for n in shape or values.shape) + values.tobytes()


def _md5(raw):
    return _Md5(hashlib.md5(raw).hexdigest())


IMAGES = np.arange(24).reshape(2, 3, 4)


def test_idx_is_read_in_order():
    raw = _idx(IMAGES)
    np.testing.assert_array_equal(read_idx(gzip.compress(raw), (2, 3, 4), _md5(raw)), IMAGES)
    packed = gzip.compress(raw)
    again = read_idx(packed, (2, 3, 4), _Md5(hashlib.md5(packed).hexdigest(), packed=True))
    np.testing.assert_array_equal(again, IMAGES)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (_idx(IMAGES, magic=b"\0\0\x0d\x03"), "begins with 00000d03 where 00000803"),
        (_idx(IMAGES.ravel()), "begins with 00000801"),
        (b"", "begins with nothing"),
        (_idx(IMAGES)[:9], "its shape is"),
        (_idx(IMAGES, shape=(2, 4, 3)), r"its shape is \[2, 4, 3\], not \[2, 3, 4\]"),
        (_idx(IMAGES, shape=(2**32 - 1, 3, 4)), r"its shape is \[4294967295, 3, 4\]"),
        (_idx(IMAGES)[:-1], "cut short"),
        (_idx(IMAGES) + b"x", "longer than it says"),
        (_idx(IMAGES + 1), "md5 of its unpacked bytes"),
    ],
)
def test_idx_that_is_not_what_it_should_be(raw, reason):
    with pytest.raises(RawError, match=reason):
        read_idx(gzip.compress(raw), (2, 3, 4), _md5(_idx(IMAGES)))


def test_labels_beyond_nine_and_wrong_packed_bytes():
    raw = _idx([1, 10])
    with pytest.raises(RawError, match="label 10"):
        read_idx(gzip.compress(raw), (2,), _md5(raw))
    with pytest.raises(RawError, match="md5 of the file"):
        read_idx(gzip.compress(raw), (2,), _Md5("0" * 32, packed=True))


@pytest.mark.slow
def test_a_bomb_is_not_unpacked(monkeypatch):
    """100 MB of zeros behind a right header: no more than the expected size is ever read."""
    bomb = gzip.compress(_idx(IMAGES) + bytes(100_000_000))
    read = []
    inner = images.GzipFile.read
    monkeypatch.setattr(images.GzipFile, "read", lambda self, n: read.append(n) or inner(self, n))
    with pytest.raises(RawError, match="longer"):
        read_idx(bomb, (2, 3, 4), _md5(_idx(IMAGES)))
    assert read == [4 + 3 * 4 + 24 + 1]


# -------------------------------------------------------------------------- small stand-ins for the real sets


@pytest.fixture
def tiny(monkeypatch):
    """Sets of 6 training and 4 test images with digests of their own: name -> {part: packed bytes}."""
    monkeypatch.setattr(images, "TRAIN_ROWS", 6)
    monkeypatch.setattr(images, "TEST_ROWS", 4)
    monkeypatch.setattr(images, "STAND_IN_ROWS", 3)
    rng = np.random.default_rng(0)
    sets, digests = {}, {}
    for name in NAMES:
        for part in PARTS:
            n = 6 if "train" in part else 4
            values = rng.integers(0, 256, (n, 28, 28)) if "images" in part else np.arange(n) % 10
            raw = _idx(values)
            packed = gzip.compress(raw, mtime=0)
            known_packed = images.MD5[name, part].packed
            digests[name, part] = _Md5(hashlib.md5(packed if known_packed else raw).hexdigest(), known_packed)
            sets.setdefault(name, {})[part] = packed
    monkeypatch.setattr(images, "MD5", digests)
    return sets


def _fill(folder, name, files, leave_out=()):
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for part, packed in files.items():
        if part not in leave_out:
            (folder / "images" / f"{name.removesuffix('_mnist')}-{part}-ubyte.gz").write_bytes(packed)


@pytest.fixture
def publish(server, change_entry):
    """Puts the files of a set on the server, at the last of two mirrors."""

    def put(name, files):
        server.pages.update({f"/good/{part}-ubyte.gz": packed for part, packed in files.items()})
        change_entry(name, addresses=(f"{server.address}/gone/", f"{server.address}/good/"))

    return put


@pytest.mark.parametrize("name", NAMES)
def test_download_from_the_mirror_that_answers_then_the_cache(
    name, tiny, publish, server, no_mirror, monkeypatch, tmp_path
):
    publish(name, tiny[name])
    data = load(name)
    assert (data.x_train.shape, data.x_test.shape) == ((6, 784), (4, 784))
    assert len(server.asked) == 8
    assert fetch(name) == no_mirror / name
    again = load(name)
    assert len(server.asked) == 8
    _fill(tmp_path, name, tiny[name])
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    from_folder = load(name)
    assert fetch(name) == tmp_path / "images"
    for other in (again, from_folder):
        np.testing.assert_array_equal(other.x_train, data.x_train)
        np.testing.assert_array_equal(other.y_test, data.y_test)
        assert other.oddities == data.oddities == describe(name).oddities


def test_training_images_of_kmnist_are_used_once_they_can_be_had(
    tiny, publish, server, no_mirror, monkeypatch, tmp_path
):
    publish("kmnist", tiny["kmnist"])
    _fill(tmp_path, "kmnist", tiny["kmnist"], leave_out=("train-images-idx3",))
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    assert load("kmnist").x_train.shape == (3, 784)
    assert server.asked == [], "loading does not reach for the network behind a folder for offline work"
    fetch("kmnist")
    assert load("kmnist").x_train.shape == (6, 784)
    assert load("kmnist").oddities == describe("kmnist").oddities
    assert load("kmnist", protocol="whole").x_train.shape == (10, 784)
    # other sets have no such way out
    publish("mnist", tiny["mnist"])
    _fill(tmp_path, "mnist", tiny["mnist"], leave_out=("train-images-idx3",))
    assert load("mnist").x_train.shape == (6, 784)


def test_whole_joins_training_and_test_images(tiny, no_mirror, monkeypatch, tmp_path):
    _fill(tmp_path, "mnist", tiny["mnist"])
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    data, whole = load("mnist"), load("mnist", protocol="whole")
    np.testing.assert_array_equal(whole.x_train, np.concatenate([data.x_train, data.x_test]))
    np.testing.assert_array_equal(whole.y_train, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3])
    assert (whole.x_test.shape, whole.y_test.shape) == ((0, 784), (0,))
    for wrong in ({"split": 1}, {"protocol": "80/20"}):
        with pytest.raises(DataError, match="mnist: "):
            load("mnist", **wrong)


def test_copies_across_the_split_are_counted(tiny, no_mirror, monkeypatch, tmp_path):
    train = gzip.decompress(tiny["mnist"]["train-images-idx3"])
    raw = _idx(
        np.frombuffer(train, np.uint8, offset=16).reshape(6, 28, 28)[[3, 3, 0, 1]]
        * [[[1]], [[1]], [[0]], [[1]]]
    )
    images.MD5["mnist", "t10k-images-idx3"] = _md5(raw)
    _fill(tmp_path, "mnist", tiny["mnist"] | {"t10k-images-idx3": gzip.compress(raw)})
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    assert load("mnist").oddities[-1] == "3 of 4 test images are exact copies of training images"


DAMAGE = {
    "cut": lambda packed: packed[:-40],
    "empty": lambda packed: b"",
    "a page": lambda packed: b"<html>sign in</html>",
    "one byte": lambda packed: packed[:900] + bytes([packed[900] ^ 1]) + packed[901:],
    "other content": lambda packed: gzip.compress(gzip.decompress(packed)[:-1] + b"\xff"),
    "unpacked": gzip.decompress,
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("place", ["folder", "server", "cache"])
def test_damaged_files_are_refused_in_one_line(
    how, place, tiny, publish, server, no_mirror, monkeypatch, tmp_path
):
    part = "t10k-images-idx3"
    damaged = tiny["mnist"] | {part: DAMAGE[how](tiny["mnist"][part])}
    if place == "cache":
        publish("mnist", tiny["mnist"])
        expected = load("mnist")
        (no_mirror / "mnist" / f"{part}-ubyte.gz").write_bytes(damaged[part])
        np.testing.assert_array_equal(load("mnist").x_test, expected.x_test)
        assert len(server.asked) == 10, "only the damaged file is fetched anew"
        return
    if place == "folder":
        _fill(tmp_path, "mnist", damaged)
        monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    else:
        publish("mnist", damaged)
    with pytest.raises(DataError, match=r"^mnist: .*(fails its checksum|cannot get)") as caught:
        load("mnist")
    message = str(caught.value)
    assert "\n" not in message
    assert part in message
    if place == "server":
        assert not list(no_mirror.rglob(f"*{part}*")), "what is damaged is not kept"
    else:
        assert "copy it anew" in message


def test_no_network_and_no_folder(tiny, publish, server, no_mirror):
    publish("kmnist", {})
    with pytest.raises(DataError, match="kmnist: cannot get .*404.* holds images/kmnist-") as caught:
        load("kmnist")
    assert "\n" not in str(caught.value)


def test_digests_are_named_for_every_file():
    assert set(images.MD5) == {(name, part) for name in NAMES for part in PARTS}
    assert all(len(md5.digest) == 32 for md5 in images.MD5.values())
    assert [key for key, md5 in images.MD5.items() if md5.packed] == [("kmnist", "train-images-idx3")]
    assert all(entry(name).addresses[0].endswith("/") for name in NAMES)


def test_white_is_one():
    found = _scaled(np.array([0, 51, 255], dtype=np.uint8))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [0, 0.2, 1], rtol=1e-7)
