"""Explains errors of runtimes and registries by their wording. Pure.

The wording is that of containerd, Go's ``net`` and ``crypto/x509``, runc and CNI plugins.
"""

from __future__ import annotations

import re
import shlex
from typing import Final, NamedTuple

from pycrictl.progress.reference import flaw, parse


class Trouble(NamedTuple):
    """The meaning of an error.

    ``rank`` is how likely it causes all the others; ``text`` follows the image's name. In
    ``advice``, IMAGE stands for the image, HOST for its registry and REPOSITORY for HOST/PATH;
    ``retry`` is the advice for a user's own failed pull, if it differs.
    """

    pattern: str
    kind: str
    rank: int
    text: str
    advice: str
    retry: str = ""


NO_SPACE: Final = "no space left on device"
FREE_SPACE: Final = "'pycrictl imagefsinfo -o wide' shows the disk, 'pycrictl rmi --prune' frees it"
_REASON_CHARS: Final = 100

_PULLS: Final = (
    Trouble(NO_SPACE, "disk-full", 95, "there is no space left for it", FREE_SPACE),
    Trouble(
        r"server gave HTTP response to HTTPS client|first record does not look like a TLS",
        "plain-http",
        88,
        "its registry speaks plain HTTP, and the node expects TLS",
        "allow that in certs.d/HOST/hosts.toml, or have the registry serve TLS",
    ),
    Trouble(
        r"certificate is (?:valid for|not valid for)|doesn't contain any IP SANs|Common Name",
        "x509",
        88,
        "the certificate of the registry is for another name",
        "correct the image's name, or have the registry's certificate made for HOST",
    ),
    Trouble(
        r"certificate has expired|not yet valid",
        "x509",
        88,
        "the certificate of the registry is not valid now",
        "'date' shows whether the clock is right; else renew the registry's certificate",
    ),
    Trouble(
        r"x509:|certificate|tls: (?!handshake timeout)",
        "x509",
        88,
        "the node does not trust the certificate of the registry",
        "put the registry's CA into certs.d, then 'pycrictl doctor --registry REPOSITORY'",
    ),
    Trouble(
        r"\b40[13]\b|unauthorized|authorization failed|forbidden|denied|no basic auth credentials",
        "unauthorized",
        87,
        "the registry refuses access to it",
        "check the pod's imagePullSecrets; 'pycrictl pull --creds USER IMAGE' tries others",
        "'pycrictl pull --creds USER IMAGE' takes other credentials, --authfile a file of them",
    ),
    Trouble(
        r"no such host|connection refused|no route to host|network is unreachable|i/o timeout"
        r"|dial tcp|connection reset|handshake timeout|deadline exceeded|\b50[0234]\b|: EOF$"
        r"|server misbehaving|RegistryUnavailable",
        "registry-down",
        86,
        "it could not be fetched from its registry or a mirror of it",
        "'pycrictl doctor --registry REPOSITORY' tests it and its mirrors",
    ),
    Trouble(
        r"\b429\b|toomanyrequests|too many requests",
        "rate-limited",
        86,
        "the registry has answered too many requests of this node",
        "pull with credentials, or from a mirror",
    ),
    Trouble(
        r"no match for platform",
        "wrong-platform",
        86,
        "it does not exist for this machine's platform",
        "build it for this platform, or schedule the pod elsewhere",
    ),
    Trouble(
        r"not found|manifest unknown|name unknown|\b404\b|does not exist",
        "not-found",
        85,
        "the registry does not have it",
        "check its name and tag; 'pycrictl pull IMAGE' tries it at once",
        "check its name and tag, in upper and lower case",
    ),
    Trouble(
        r"InvalidImageName|invalid reference format|couldn't parse image",
        "invalid-name",
        85,
        "its name is invalid",
        "correct the name in the pod",
        "correct the name",
    ),
    Trouble(
        r"ErrImageNeverPull|is not present with pull policy of Never",
        "never-pulled",
        85,
        "it is not on the node, and the pod forbids to pull it",
        "'pycrictl pull IMAGE', or change imagePullPolicy",
    ),
    Trouble(
        r"context canceled",
        "pull-failed",
        84,
        "its pull was given up before it had ended",
        "'pycrictl image-pull-progress --image IMAGE' shows whether bytes come; containerd"
        " gives a pull up that brings none (image_pull_progress_timeout)",
    ),
)
_OF_REGISTRIES: Final = frozenset(
    ("plain-http", "x509", "unauthorized", "registry-down", "rate-limited", "not-found")
)
_FAILED: Final = Trouble("", "pull-failed", 84, "its pull fails", "'pycrictl pull IMAGE' tries it")


def pull_trouble(cause: str) -> Trouble:
    return next((one for one in _PULLS if re.search(one.pattern, cause, re.I)), _FAILED)


class Words(NamedTuple):
    """What happened and what to do; ``kind`` is the trouble's, where one is the reason."""

    text: str
    advice: str
    kind: str = ""

    @property
    def is_registrys(self) -> bool:
        """Whether a registry or the way to it failed."""
        return self.kind in _OF_REGISTRIES


def words_of(trouble: Trouble, image: str, *, is_own: bool = False) -> Words:
    """Word a trouble of an image; ``is_own`` is for a user's own failed pull.

    Commands in the advice name what the image's reference means, not how it is spelled.
    """
    advice = (trouble.retry if is_own else "") or trouble.advice
    if trouble.kind == "invalid-name" and (wrong := flaw(image)) is not None:
        return Words(f"{trouble.text}: {wrong.text}", f"{advice}: {wrong.advice}")
    reference = parse(image)
    values = {"IMAGE": image, "HOST": reference.host, "REPOSITORY": reference.name}
    pattern = rf"\b(?:{'|'.join(values)})\b"
    advice = re.sub(pattern, lambda found: shlex.quote(values[found[0]]), advice)
    return Words(trouble.text, advice, trouble.kind)


def pull_words(cause: str, image: str) -> Words | None:
    """Explain the error of a user's own pull; None if there is no explanation."""
    trouble = pull_trouble(cause)
    if trouble is _FAILED:
        return None
    words, reason = words_of(trouble, image, is_own=True), last_reason(cause)
    if trouble.kind in ("registry-down", "x509", "plain-http", "disk-full") and reason:
        return words._replace(text=f"{words.text} ({reason})")
    return words


_SANDBOX_IMAGE: Final = r'get sandbox image \\?"(?P<image>[^"\\]+)\\?"(?P<why>.*)'


def sandbox_words(cause: str) -> Words | None:
    """Explain a sandbox error about a missing image or a full disk; None for other errors."""
    if NO_SPACE in cause:
        return Words(f"there is no space left to make it ({shortened(cause)})", FREE_SPACE)
    if (found := re.search(_SANDBOX_IMAGE, cause, re.DOTALL)) is None:
        return None
    image = found["image"]
    trouble = pull_trouble(found["why"])
    advice = (
        f"'pycrictl pull {image}' tries it; or name another one in the runtime's configuration"
        " (sandbox_image, in containerd 2 pinned_images.sandbox; in CRI-O pause_image)"
    )
    text = f'the image of every pod sandbox (pause), "{image}", is not on the node: {trouble.text}'
    return Words(text, advice)


def last_reason(cause: str) -> str:
    chain = " ".join(cause.split()).removesuffix(": unknown")
    _, colon, reason = chain.rpartition(": ")
    return reason if colon and len(reason) <= _REASON_CHARS else ""


_BAD_COMMAND: Final = (
    r"executable file not found|no such file or directory|permission denied|exec format error"
    r"|is a directory|not a directory"
)


def is_bad_command(message: str) -> bool:
    return "exec" in message and bool(re.search(_BAD_COMMAND, message))


def shortened(message: str) -> str:
    """Return the end of a chain of wrapped errors, which holds the cause."""
    text = " ".join(message.split()).removesuffix(": unknown")
    text = re.sub(r"^rpc error: code = \w+ desc = ", "", text)
    if (at := text.rfind("exec: ")) >= 0:
        return text[at + len("exec: ") :].replace('\\"', '"')
    for wrapping in ("failed to setup network for sandbox ", "failed to set up sandbox "):
        if wrapping in text:
            text = text.partition(wrapping)[2].partition(": ")[2] or text
    for wrapping in ("OCI runtime create failed: ", "runc create failed: "):
        text = text.rpartition(wrapping)[2]
    return text


def exit_words(code: int) -> str:
    known = {126: "its command cannot be executed", 127: "a command was not found"}
    signals = {6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
    if code > 128 and code - 128 in signals:
        return f" ({signals[code - 128]})"
    return f" ({known[code]})" if code in known else ""
