"""What a runtime reports of one object: its status, its log, what it uses."""

from __future__ import annotations
