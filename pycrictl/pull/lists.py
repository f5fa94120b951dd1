"""Lists of images in files: one a line, or the ``images`` of a YAML document. Pure."""

from __future__ import annotations

import re
from typing import Final

from pycrictl import yamltree
from pycrictl.errors import ConfigError

MAX_IMAGES: Final = 10_000

_YAML: Final = r"(?m)^images\s*:"


def images_in(text: str) -> list[str]:
    """Return the images of a list, each once, in their order.

    A line may end in a comment (``#``). In YAML an image is a text, or a mapping with ``name`` or
    ``image``.

    Raises:
        ConfigError: something in it is no image, or there is none.
    """
    if re.search(_YAML, text):
        found = list(_of_yaml(text))
    else:
        lines = [re.sub(r"(?:^|\s)#.*", "", line).strip() for line in text.splitlines()]
        for number, line in enumerate(lines, 1):
            if len(line.split()) > 1:
                raise ConfigError(f"line {number}: more than one word")
        found = [line for line in lines if line]
    if not found:
        raise ConfigError("no image is in it")
    if len(found) > MAX_IMAGES:
        raise ConfigError(f"more than {MAX_IMAGES} images are in it")
    return list(dict.fromkeys(found))


def _of_yaml(text: str) -> list[str]:
    try:
        document = yamltree.parse(text).data
    except yamltree.Problem as exc:
        raise ConfigError(f"line {exc.line}: {exc}") from None
    listed = document.get("images") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ConfigError("images is not a list")
    found = []
    for number, one in enumerate(listed, 1):
        name = (one.get("name") or one.get("image")) if isinstance(one, dict) else one
        if not isinstance(name, str) or not name.strip() or len(name.split()) > 1:
            raise ConfigError(f"images, entry {number}: it is no image")
        found.append(name.strip())
    return found
