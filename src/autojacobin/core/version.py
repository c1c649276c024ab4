"""The version of the package."""

from importlib.metadata import version

VERSION = version("autojacobin")  # read once: to find it takes a millisecond
