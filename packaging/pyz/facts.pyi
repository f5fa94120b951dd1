# Written by pyz.py into the archive.
KEY: str
SUFFIXES: tuple[str, ...]
