"""Explains errors of runtimes and registries by their wording. Pure.

The wording is that of containerd, Go's ``net`` and ``crypto/x509``, runc and CNI plugins.
"""

from __future__ import annotations

import re
import shlex
from typing import Final, NamedTuple

from pycrictl.pulls.reference import flaw, parse


class PullCause(NamedTuple):
    """The meaning of an error.

    ``text`` follows the image's name. In the advice, IMAGE stands for the image, HOST for its
    registry and REPOSITORY for HOST/PATH. ``advice`` is for an administrator on the node; ``retry``
    for a user's own failed pull and ``elsewhere`` for a user of the cluster, if they differ.
    """

    pattern: str
    kind: str
    text: str
    advice: str
    retry: str = ""
    elsewhere: str = ""


NO_SPACE: Final = "no space left on device"
FREE_SPACE: Final = "'pycrictl doctor' shows the disks, 'pycrictl rmi --prune' frees space"
_REASON_CHARS: Final = 100

_TRUST: Final = "put the registry's CA into certs.d"
_CHECK_NAME: Final = "check its name and tag"

# fmt: off
PULL_CAUSES: Final = (
    PullCause(NO_SPACE, "disk-full", "there is no space left for it", FREE_SPACE,
        elsewhere="free space on the node, or give it a larger disk"),
    PullCause(r"server gave HTTP response to HTTPS client|first record does not look like a TLS",
        "plain-http", "its registry speaks plain HTTP, and the node expects TLS",
        "allow that in certs.d/HOST/hosts.toml, or have the registry serve TLS"),
    PullCause(r"certificate is (?:valid for|not valid for)|doesn't contain any IP SANs|Common Name",
        "x509", "the certificate of the registry is for another name",
        "correct the image's name, or have the registry's certificate made for HOST"),
    PullCause(r"certificate has expired|not yet valid",
        "x509", "the certificate of the registry is not valid now",
        "'date' shows whether the clock is right; if it is, renew the registry's certificate",
        elsewhere="renew the registry's certificate, unless the node's clock is wrong"),
    PullCause(r"remote error: tls: (?:bad|unknown) certificate|certificate required",
        "x509", "its registry demands a client certificate that it trusts",
        "name one in certs.d/HOST/hosts.toml (client)",
        elsewhere="give the nodes a client certificate for HOST (certs.d, client)"),
    PullCause(r"x509:|certificate",
        "x509", "the node does not trust the certificate of the registry",
        f"{_TRUST}, then 'pycrictl doctor --registry REPOSITORY'",
        elsewhere=f"{_TRUST} on the nodes"),
    PullCause(
        r"\b40[13]\b|unauthorized|authorization failed|forbidden|denied|no basic auth credentials",
        "unauthorized", "the registry refuses access to it",
        "check the pod's imagePullSecrets; 'pycrictl pull --creds USER IMAGE' tries another login",
        "use other credentials: 'pycrictl pull --creds USER IMAGE', or --authfile FILE",
        "check the pod's imagePullSecrets"),
    PullCause(r"no such host|connection refused|no route to host|network is unreachable|i/o timeout"
        r"|dial tcp|connection reset|handshake timeout|tls: |deadline exceeded|\b50[0234]\b|: EOF$"
        r"|server misbehaving|RegistryUnavailable",
        "registry-down", "it could not be fetched from its registry or a mirror of it",
        "'pycrictl doctor --registry REPOSITORY' tests it and its mirrors",
        elsewhere="check that the registry HOST is up, and that the nodes reach it"),
    PullCause(r"\b429\b|toomanyrequests|too many requests",
        "rate-limited", "this node has sent the registry too many requests",
        "pull with credentials, or from a mirror"),
    PullCause(r"no match for platform",
        "wrong-platform", "it does not exist for this machine's platform",
        "build it for this platform, or schedule the pod elsewhere"),
    PullCause(r"not found|manifest unknown|name unknown|\b404\b|does not exist",
        "not-found", "the registry does not have it",
        f"{_CHECK_NAME}; 'pycrictl pull IMAGE' tries again at once",
        f"{_CHECK_NAME}, including upper and lower case", _CHECK_NAME),
    PullCause(r"InvalidImageName|invalid reference format|couldn't parse image",
        "invalid-name", "its name is invalid", "correct the name in the pod", "correct the name"),
    PullCause(r"ErrImageNeverPull|is not present with pull policy of Never",
        "never-pulled", "it is not on the node, and its pull policy is Never",
        "'pycrictl pull IMAGE', or change imagePullPolicy",
        elsewhere="change imagePullPolicy, or load the image onto the node"),
    PullCause(r"context canceled",
        "pull-failed", "the pull was cancelled before it finished",
        "'pycrictl image-pull-progress' shows whether data is arriving; containerd"
        " cancels a pull without data (image_pull_progress_timeout)",
        elsewhere="'kubectl image-pull-progress' shows whether data is arriving"),
)
# fmt: on
_FAILED: Final = PULL_CAUSES[-1]._replace(
    text="its pull fails",
    advice="'pycrictl pull IMAGE' tries again",
    elsewhere="'kubectl describe pod' shows each attempt",
)


def pull_cause(error: str) -> PullCause:
    return next((cause for cause in PULL_CAUSES if re.search(cause.pattern, error, re.I)), _FAILED)


class Words(NamedTuple):
    """What happened and what to do; ``kind`` is that of the cause, where it is known."""

    text: str
    advice: str
    kind: str = ""


def words_of(
    cause: PullCause, image: str, *, is_own: bool = False, is_on_node: bool = True
) -> Words:
    """Put the cause of an image's error into words; ``is_own``: of a user's own failed pull.

    HOST and REPOSITORY are those that the reference stands for: ``docker.io`` where it names none.
    """
    special = cause.retry if is_own else "" if is_on_node else cause.elsewhere
    advice = special or cause.advice
    if cause.kind == "invalid-name" and (wrong := flaw(image)) is not None:
        return Words(f"{cause.text}: {wrong.text}", f"{advice}: {wrong.advice}")
    reference = parse(image)
    values = {"IMAGE": image, "HOST": reference.host, "REPOSITORY": reference.name}
    pattern = rf"\b(?:{'|'.join(values)})\b"
    advice = re.sub(pattern, lambda match: shlex.quote(values[match[0]]), advice)
    return Words(cause.text, advice, cause.kind)


def pull_words(error: str, image: str) -> Words | None:
    """Explain the error of a user's own pull; None if there is no explanation."""
    cause = pull_cause(error)
    if cause is _FAILED:
        return None
    words, reason = words_of(cause, image, is_own=True), last_reason(error)
    if cause.kind in ("registry-down", "x509", "plain-http", "disk-full") and reason:
        return words._replace(text=f"{words.text} ({reason})")
    return words


_SANDBOX_IMAGE: Final = r'get sandbox image \\?"(?P<image>[^"\\]+)\\?"(?P<why>.*)'


def sandbox_words(error: str) -> Words | None:
    """Explain a sandbox error about a missing image or a full disk; None for other errors."""
    if NO_SPACE in error:
        return Words(f"there is no space left to make it ({shortened(error)})", FREE_SPACE)
    if (match := re.search(_SANDBOX_IMAGE, error, re.DOTALL)) is None:
        return None
    image = match["image"]
    cause = pull_cause(match["why"])
    advice = (
        f"'pycrictl pull {image}' tries again; or name another in the runtime's configuration"
        " (sandbox_image, in containerd 2 pinned_images.sandbox; in CRI-O pause_image)"
    )
    text = f'the image of every pod sandbox (pause), "{image}", is not on the node: {cause.text}'
    return Words(text, advice)


def last_reason(error: str) -> str:
    chain = " ".join(error.split()).removesuffix(": unknown")
    _, colon, reason = chain.rpartition(": ")
    return reason if colon and len(reason) <= _REASON_CHARS else ""


BAD_COMMAND: Final = (
    r"exec[\s\S]*(?:executable file not found|no such file or directory|permission denied"
    r"|exec format error|is a directory|not a directory)"
)


_WRAPPINGS: Final = (
    r"rpc error: code = \w+ desc = |\(combined from similar events\): "
    r"|Failed to create pod sandbox: |^error killing pod: "
)


def shortened(message: str) -> str:
    """Return the end of a chain of wrapped errors, which holds the cause."""
    text = " ".join(message.split()).removesuffix(": unknown")
    text = re.sub(_WRAPPINGS, "", text)
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
