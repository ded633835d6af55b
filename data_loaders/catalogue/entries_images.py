"""Facts about the sets of images of 28 x 28 grey pixels in ten classes, each with a split of its own."""

from __future__ import annotations

from data_loaders.catalogue.entries import Entry

_PIXELS = "a row holds the pixels of a 28 x 28 image, row by row, scaled to [0, 1] and not standardised"


def _images(
    name: str, target: str, licence: str, source: str, addresses: tuple[str, ...], *oddities: str
) -> Entry:
    return Entry(
        name=name,
        family="images",
        task="multiclass",
        rows=70_000,
        features=784,
        target=target,
        licence=licence,
        source=source,
        official=True,
        file=f"images/{name.removesuffix('_mnist')}-*-ubyte.gz",
        addresses=addresses,
        oddities=(_PIXELS, *oddities),
        image_shape=(28, 28),
    )


# The first address of each is the customary one; the first of MNIST often refuses visitors, so it comes last.
IMAGE_SETS: tuple[Entry, ...] = (
    _images(
        "mnist",
        "digit",
        "CC BY-SA 3.0 (as commonly stated)",
        "yann.lecun.com/exdb/mnist",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://raw.githubusercontent.com/fgnt/mnist/master/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        "official split: 60,000 training and 10,000 test images",
    ),
    _images(
        "fashion_mnist",
        "garment",
        "MIT (Zalando)",
        "github.com/zalandoresearch/fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        "official split: 60,000 training and 10,000 test images",
    ),
    _images(
        "kmnist",
        "character",
        "CC BY-SA 4.0 (KMNIST Dataset, created by CODH)",
        "codh.rois.ac.jp/kmnist",
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        "official split: 60,000 training and 10,000 test images",
        "a ZOO_DATA folder without the training images gives 8,000 training and 2,000 test images out of the "
        "official test images (zoo data fetch kmnist downloads what is missing)",
        "an older release of KMNIST holds most of the same images in another order",
    ),
)
