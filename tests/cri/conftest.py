from __future__ import annotations

from tests.fakecri.fixtures import fake

__all__ = ["fake"]
