"""Callbacks that write something down for each trial of a search."""

from shoal.tune.logger.base import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback, pretty_print
from shoal.tune.logger.tensorboard import TBXLoggerCallback

__all__ = ["CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback", "pretty_print"]
