"""The paper's house: its figures, and its experiments with their tables and report.

The methods themselves are in :mod:`autojacobin.hashers`, their mathematics in :mod:`autojacobin.autoencoder`.
"""
