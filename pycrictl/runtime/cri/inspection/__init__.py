"""What a runtime reports about one object: its status, log and resource usage."""

from __future__ import annotations
