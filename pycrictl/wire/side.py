"""Which end of a connection an object is. Pure."""

from __future__ import annotations

from enum import Enum


class Side(Enum):
    """Who opened the connection, and who accepted it."""

    CLIENT = 1
    SERVER = 2
