"""The operations of a reduction."""

from enum import StrEnum
from typing import Literal, TypeAlias


class Op(StrEnum):
    """How the contributions of all ranks become one value, slot by slot. Plain strings do as well."""

    MIN = "min"
    """The smallest contribution."""
    MAX = "max"
    """The largest contribution."""
    SUM = "sum"
    """The sum of all contributions; one that does not fit is an error on every rank, and fails nothing."""
    OR = "or"
    """The bits that any rank has set."""
    AND = "and"
    """The bits that all ranks have set."""


Operation: TypeAlias = Op | Literal["min", "max", "sum", "or", "and"]
