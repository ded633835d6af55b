"""Facts about the sets that are used whole: variable selection, and posteriordb with its reference draws."""

from __future__ import annotations

from typing import Any

from data_loaders.catalogue.entries import Entry
from data_loaders.originals.checksums import CONTENT_SHA256, FILE_SHA256


def _whole(
    name: str, file: str | None, rows: int, features: int, target: str, source: str, **others: Any
) -> Entry:
    content = CONTENT_SHA256.get(name, "")
    facts: dict[str, Any] = {"task": "regression", "licence": "none stated", "content": content, **others}
    return Entry(
        name=name,
        rows=rows,
        features=features,
        target=target,
        source=source,
        whole=True,
        file=file,
        sha256="" if file is None else FILE_SHA256[file],
        **facts,
    )


_EMJ = "https://raw.githubusercontent.com/aliaksah/EMJMCMC2016/master/examples/"
_LINEAR = f"{_EMJ}Simulated%20Data%20%28Example%201%29/simcen-"
_LOGISTIC = f"{_EMJ}Simulated%20Logistic%20Data%20With%20Multiple%20Modes%20%28Example%203%29/sim3-"
_CRIME = f"{_EMJ}US%20Data/simcen-"
_CRIME_FEATURES = (
    *("M", "So", "Ed", "Po1", "Po2", "LF", "M.F", "Pop"),
    *("NW", "U1", "U2", "GDP", "Ineq", "Prob", "Time"),
)
_UCI_LICENCE = "CC BY 4.0 (UCI; taken from LarsELund/LBBNN, MIT)"
_EXACT = "guides.truth.enumerate_g_prior counts all 2^15 models: g-prior"

_VARIABLE_SELECTION = (
    _whole(
        "us_crime",
        "varsel/us_crime.npz",
        47,
        15,
        "log crime rate",
        f"{_CRIME}x1.txt",
        family="varsel",
        addresses=(f"{_CRIME}x1.txt", f"{_CRIME}y1.txt"),
        form="us_crime",
        feature_names=_CRIME_FEATURES,
        oddities=(
            "features are centred, and logarithms except So",
            "the source files have age (M) and the target in each other's place; put right here",
            _EXACT + " with g = 47 (extras['g'])",
        ),
    ),
    _whole(
        "mjmcmc_sim_linear",
        "varsel/mjmcmc_sim_linear.npz",
        100,
        15,
        "y",
        f"{_LINEAR}x.txt",
        family="varsel",
        addresses=(f"{_LINEAR}x.txt", f"{_LINEAR}y.txt"),
        form="features_and_target",
        feature_names=tuple(f"x{i}" for i in range(1, 16)),
        oddities=("features are centred", _EXACT + " with g = 100 (extras['g'])"),
    ),
    _whole(
        "mjmcmc_sim_logistic",
        "varsel/mjmcmc_sim_logistic.npz",
        2000,
        20,
        "y",
        f"{_LOGISTIC}X.txt",
        family="varsel",
        task="binary",
        addresses=(f"{_LOGISTIC}X.txt", f"{_LOGISTIC}Y.txt"),
        form="features_and_target",
        feature_names=tuple(f"x{i}" for i in range(1, 21)),
        oddities=(
            "x1 + x2 + x3 = 1 and x4 + x5 + x6 = 1: two directions are unidentified beside an intercept",
            "almost separable: a logistic fit reaches 99.4 % accuracy",
            "the coefficients printed in the thesis fit only with the 13th negative and an intercept near 99",
            "column x20 (sd 16) is on another scale than the rest and the thesis leaves it so",
        ),
    ),
    _whole(
        "raisin",
        None,
        900,
        7,
        "Kecimen=1",
        "UCI 850, Cinar, Koklu and Tasdemir 2020; ships with this package",
        family="shipped",
        task="binary",
        licence=_UCI_LICENCE,
        oddities=(
            "label 1 is Kecimen, 0 Besni, 450 each; rows are sorted by class",
            "features are strongly correlated",
        ),
    ),
    _whole(
        "gallstone",
        None,
        319,
        38,
        "Gallstone Status",
        "UCI 1150, Esen et al. 2024; ships with this package",
        family="shipped",
        task="binary",
        licence=_UCI_LICENCE,
        oddities=(
            "which label means gallstones is unclear: 161 zeros equal the reported number of patients, but "
            "C-reactive protein is higher for label 1",
            "one Obesity value (0-based row 239) is 1954, an entry error, left as it is",
            "several binary columns have few ones",
        ),
    ),
)

_PDB = "https://raw.githubusercontent.com/stan-dev/posteriordb/master/posterior_database/"
_DRAWS = (
    "reference draws [10 chains, 1000, P] in extras['draws']; draws[..., :-1] @ x.T is the mean of y "
    "and draws[..., -1] its sd",
)


def _posteriordb(name: str, posterior: str, rows: int, features: int, target: str, *oddities: str) -> Entry:
    return _whole(
        f"posteriordb_{name}",
        f"posteriordb/{posterior}.npz",
        rows,
        features,
        target,
        f"github.com/stan-dev/posteriordb {posterior}",
        family="posteriordb",
        licence="BSD-3-Clause",
        addresses=(
            f"{_PDB}data/data/{posterior.split('-')[0]}.json.zip",
            f"{_PDB}reference_posteriors/draws/draws/{posterior}.json.zip",
        ),
        form="posteriordb",
        oddities=oddities + _DRAWS,
    )


_ONES = "the column of ones stands for the intercept"
_POSTERIORDB = (
    _posteriordb("sblrc", "sblrc-blr", 100, 5, "y", "no intercept; correlated features"),
    _posteriordb("sblri", "sblri-blr", 100, 5, "y", "no intercept; independent features"),
    _posteriordb(
        "diamonds",
        "diamonds-diamonds",
        5000,
        25,
        "log price",
        "features are centred as in the Stan model",
        _ONES,
    ),
    _posteriordb("kidiq_interaction", "kidiq-kidscore_interaction", 434, 4, "kid_score", _ONES),
    _posteriordb("logmesquite", "mesquite-logmesquite", 46, 7, "log_weight", _ONES),
    _posteriordb(
        "logearn_interaction",
        "earnings-logearn_interaction_z",
        1192,
        4,
        "log_earn",
        "height is standardised with the sample sd (divisor n - 1)",
        _ONES,
    ),
    _posteriordb("nes2000", "nes2000-nes", 476, 9, "partyid7", "the target has 7 whole values", _ONES),
)

WHOLE_SETS: tuple[Entry, ...] = (*_VARIABLE_SELECTION, *_POSTERIORDB)
