"""The reduction operations by name."""

from enum import StrEnum


class ReduceOp(StrEnum):
    """How elements of different ranks are combined; each value is also its plain string.

    >>> ReduceOp.SUM == "sum"
    True
    """

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
    LAND = "land"
    LOR = "lor"
