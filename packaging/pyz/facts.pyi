# Written by pyz.py and standalone.py into the archive.
KEY: str
NAME: str
PACKED: str
SUFFIXES: tuple[str, ...]
