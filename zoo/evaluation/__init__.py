"""Grading: predictive metrics, distances to a reference posterior, the scoreboard and its pictures.

* :mod:`zoo.evaluation.metrics`: a predictive distribution against test data, each figure with its standard
error
* :mod:`zoo.evaluation.distances`: function draws and inclusion probabilities against those of a reference
* :mod:`zoo.evaluation.pareto`: the Pareto k diagnostic of a variational posterior
* :mod:`zoo.evaluation.scoreboard`: one row a method, as files and tables
* :mod:`zoo.evaluation.plots`: what all pictures have in common; ``scoreboard_plot``, ``function_plots`` and
``loss_plot`` draw one kind each

Arithmetic first (``estimates``, ``mixtures``), files and pictures last; nothing here runs a model.
"""
