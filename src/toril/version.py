"""The version of the package that is installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("toril")
except PackageNotFoundError:  # a checkout that was never installed
    VERSION = "0"
