"""Data sets as arrays, with their splits, checksums and oddities. Knows no torch, no Pyro and no model.

    from data_loaders import load, Standardizer

    data = load("boston", split=3)
    scale = Standardizer.fit(data.x_train, data.y_train, task=data.task)

    table = load_density("sachs")  # rows without a target

Some sets ship with this package or with scikit-learn. The files of the others come from the folder named by
the environment variable ZOO_DATA, else from the cache (ZOO_CACHE), else from their original address. Every
error raised on purpose is a `DataError` with a message of one line.
"""

from data_loaders.densities import DensityData, load_density
from data_loaders.errors import DataError
from data_loaders.loading import describe, fetch, list_datasets, load
from data_loaders.records import Dataset, Description
from data_loaders.standardise import Standardizer
from data_loaders.tables.csv_tables import load_csv
from data_loaders.tables.own_tables import TableOptions, load_rows, load_table, survey
from data_loaders.tables.recipe import Recipe
from data_loaders.toy import LAWS, ToyLaw, generate_bimodal, generate_heteroscedastic, generate_piecewise

__all__ = [
    "LAWS",
    "DataError",
    "Dataset",
    "DensityData",
    "Description",
    "Recipe",
    "Standardizer",
    "TableOptions",
    "ToyLaw",
    "describe",
    "fetch",
    "generate_bimodal",
    "generate_heteroscedastic",
    "generate_piecewise",
    "list_datasets",
    "load",
    "load_csv",
    "load_density",
    "load_rows",
    "load_table",
    "survey",
]
