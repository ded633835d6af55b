"""Nonparametric posteriors: normalizing flows with shared parameters, regression, logistic regression."""
