"""Registry requests (OCI distribution specification) with urllib3, and the manifest of a pull.

They use the credentials of the pull, those in the node's files, or none. A registry that requires a
token names the server that issues it (Docker's token authentication). Registries on this machine's
loopback are tried over plain HTTP first, as Docker and containerd do.

CRI-O shows the bytes received but not the total; the manifest has it. It is requested once per
pull, in a thread of its own and for two seconds at most; the pull itself never waits for it.

Mirrors, logins and authorities are read as CRI-O reads them: containers-registries.conf(5) with its
drop-ins, containers-auth.json(5) and containers-certs.d(5). Not supported: credential helpers,
short names, wildcard prefixes, and limiting a mirror to tags or digests.
"""

from __future__ import annotations

import base64
import platform
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit
from urllib.request import proxy_bypass

import tomli

from pycrictl._proto import cri_pb2
from pycrictl.containerd.store import DOCUMENT_LIMIT_BYTES, Index, Manifest, parse_document
from pycrictl.foreign import mapping, mappings, parsed, text
from pycrictl.progress.reference import DEFAULT_HOST, DEFAULT_TAG, parse
from pycrictl.tls import client_context

TIMEOUT_S: Final = 2.0

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}

_ACCEPT: Final = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_PARAMETER: Final = re.compile(r'([a-zA-Z]+)="([^"]*)"')
_LOOPBACK: Final = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?")

# Requests


class RegistryAnswer(NamedTuple):
    """A registry's response; the body is cut off at the requested size or at the deadline."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def request(
    url: str,
    authorization: str = "",
    *,
    until: float,
    context: ssl.SSLContext,
    form: dict[str, str] | None = None,
    proxies: Mapping[str, str] | None = None,
    most: int = DOCUMENT_LIMIT_BYTES + 1,
    is_range: bool = False,
) -> RegistryAnswer:
    """Send a request; a GET follows redirects, but another host does not get the authorization.

    The body is cut off at ``until`` (monotonic) or after ``most`` bytes; ``form`` is sent by POST.
    ``proxies`` are by scheme, and ``no``. Without a response, urllib3's ``HTTPError`` is raised.
    """
    import urllib3  # noqa: PLC0415 - the import takes 50 ms

    # Verification is off only on request, so there is no need to warn.
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    options: dict[str, Any] = {
        "timeout": urllib3.Timeout(total=max(until - time.monotonic(), 0.001)),
        "ssl_context": context,
    }
    # A form may hold a token, which a redirect would send elsewhere.
    redirects = 3 if form is None else 0
    retries = urllib3.Retry(None, connect=0, read=0, status=0, other=0, redirect=redirects)
    headers = {"Accept": _ACCEPT}
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    if authorization:
        headers["Authorization"] = authorization
    if is_range:
        headers["Range"] = f"bytes=0-{most - 1}"
    parts, known = urlsplit(url), dict(proxies or {})
    proxy = "" if proxy_bypass(parts.netloc, known) else known.get(parts.scheme, "")
    with (
        urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options) as pool
    ):
        answer = pool.request(
            "GET" if form is None else "POST",
            url,
            headers=headers,
            body=None if form is None else urlencode(form),
            preload_content=False,
            retries=retries,  # those of a pool did not bind urllib3 before 2.5
        )
        body = bytearray()
        for piece in answer.stream(65536):
            body += piece
            if len(body) >= most or time.monotonic() > until:
                break
        return RegistryAnswer(answer.status, answer.headers, bytes(body[:most]))


class Challenge:
    """A ``WWW-Authenticate`` header (RFC 7235, and Docker's tokens)."""

    def __init__(self, header: str) -> None:
        kind, _, rest = header.partition(" ")
        self.kind = kind.lower()
        self._terms = dict(_PARAMETER.findall(rest))

    @property
    def realm(self) -> str:
        return text(self._terms.get("realm"))

    def query(self, scope: str = "") -> dict[str, str]:
        terms = self._terms | ({"scope": scope} if scope else {})
        return {key: terms[key] for key in ("service", "scope") if key in terms}

    @staticmethod
    def authorization(body: bytes) -> str:
        answer = parsed(body)
        tokens = (text(answer.get(key), DOCUMENT_LIMIT_BYTES) for key in ("token", "access_token"))
        token = next(filter(None, tokens), "")
        return f"Bearer {token}" if token and token.isascii() and token.isprintable() else ""


# Credentials


class Credentials(NamedTuple):
    """Credentials for a registry; never shown."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    registry_token: str = ""

    def __repr__(self) -> str:
        return "Credentials(…)"

    @property
    def basic(self) -> str:
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        return f"Basic {pair}" if self.username else ""


def credentials_of(auth: cri_pb2.AuthConfig) -> Credentials | None:
    username, password = auth.username, auth.password
    if auth.auth and not username:
        username, password = _pair(auth.auth)
    found = Credentials(username, password, auth.identity_token, auth.registry_token)
    return found if any(found) else None


def _pair(encoded: str) -> tuple[str, str]:
    with suppress(ValueError):
        username, _, password = base64.b64decode(encoded).decode().rstrip("\0").partition(":")
        return username, password
    return "", ""


# The manifest of a pull


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """A request for a manifest, and how the process that pulls reaches the registry.

    ``root`` is the prefix of paths to that process's files, which name mirrors, logins and
    authorities; ``environ`` holds its environment variables.
    """

    reference: str
    credentials: Credentials | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    root: str = ""


class Inquiry:
    """A manifest being fetched in the background; it stays None on failure."""

    def __init__(
        self, question: ManifestRequest, ask: Callable[[ManifestRequest], Manifest | None]
    ) -> None:
        self.manifest: Manifest | None = None
        self._until = time.monotonic() + TIMEOUT_S

        def run() -> None:
            self.manifest = ask(question)

        self._thread = threading.Thread(target=run, name="manifest", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive() or time.monotonic() >= self._until


def ask(question: ManifestRequest) -> Manifest | None:
    """Return an image's manifest for this machine's platform; None if it cannot be fetched."""
    until = time.monotonic() + TIMEOUT_S
    data = _fetch(question, question.reference, until)
    if isinstance(parse_document(data), Index) and (digest := platform_digest(data)):
        host, path, _, _ = parse(question.reference)
        data = _fetch(question, f"{host}/{path}@{digest}", until)
    document = parse_document(data)
    return document if isinstance(document, Manifest) else None


def _fetch(question: ManifestRequest, reference: str, until: float) -> bytes:
    """Return the manifest or index of a reference; empty if all locations fail or time out."""
    import urllib3  # noqa: PLC0415 - on CRI-O alone

    root, environ = question.root, question.environ
    proxies = {
        key.lower().removesuffix("_proxy"): value
        for key, value in environ.items()
        if key.lower().endswith("_proxy")
    }
    for place in locations(reference, root, environ):
        host, path, tag, digest = parse(place.reference)
        site = "registry-1.docker.io" if host == DEFAULT_HOST else host
        # As in CRI-O, the pull's credentials are only for the host that it names.
        known = question.credentials if host == parse(question.reference).host else None
        known = known or login(place.reference, root, environ) or Credentials()
        schemes = ["https", "http"] if place.is_insecure else ["https"]
        if _LOOPBACK.fullmatch(site):
            schemes = ["http", "https"]
        context = _context_for(host, root, verifies=not place.is_insecure)
        get = partial(request, until=until, context=context, proxies=proxies)
        for scheme in schemes:
            url = f"{scheme}://{site}/v2/{path}/manifests/{digest or tag or DEFAULT_TAG}"
            with suppress(urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError):
                return _manifest(get, url, known)
    return b""


def _manifest(get: Callable[..., RegistryAnswer], url: str, known: Credentials) -> bytes:
    answer = get(url, f"Bearer {known.registry_token}" if known.registry_token else "")
    challenge = Challenge(answer.headers.get("WWW-Authenticate", ""))
    if answer.status == 401 and (authorization := _authorization(get, url, challenge, known)):
        answer = get(url, authorization)
    return _granted(answer)


def _authorization(
    get: Callable[..., RegistryAnswer], url: str, challenge: Challenge, known: Credentials
) -> str:
    """Return the ``Authorization`` that a challenge requires; empty if there is none."""
    if challenge.kind == "basic":
        return known.basic
    realm = challenge.realm
    # Credentials are sent in clear only to the registry's own host.
    is_safe = realm.startswith("https://") or urlsplit(realm).hostname == urlsplit(url).hostname
    if challenge.kind != "bearer" or not is_safe:
        return ""
    query = challenge.query()
    if known.identity_token and not known.basic:
        query |= {"grant_type": "refresh_token", "refresh_token": known.identity_token}
        return challenge.authorization(_granted(get(realm, form=query)))
    return challenge.authorization(_granted(get(f"{realm}?{urlencode(query)}", known.basic)))


def _granted(answer: RegistryAnswer) -> bytes:
    if answer.status != 200 or len(answer.body) > DOCUMENT_LIMIT_BYTES:
        raise ValueError(answer.status)
    return answer.body


def platform_digest(index: bytes, machine: str = "") -> str:
    """Return the digest of the manifest for a machine (``uname -m``); empty if there is none."""
    machine = machine or platform.machine()
    wanted = "linux", _ARCHITECTURES.get(machine, machine)
    for entry in mappings(parsed(index[:DOCUMENT_LIMIT_BYTES]).get("manifests")):
        known = mapping(entry.get("platform"))
        if (known.get("os"), known.get("architecture")) == wanted:
            return text(entry.get("digest"))
    return ""


# Files of the node

REGISTRIES: Final = "/etc/containers/registries.conf"
_LIMIT_BYTES: Final = 1 << 20
_CERTIFICATES: Final = ("/etc/containers/certs.d", "/etc/docker/certs.d")
_DOCKER_HUB: Final = "https://index.docker.io/v1/"


class Location(NamedTuple):
    """Where an image may be fetched; ``is_insecure`` allows plain HTTP and any certificate."""

    reference: str
    is_insecure: bool = False


def locations(reference: str, root: str, environ: Mapping[str, str]) -> list[Location]:
    host, path, tag, digest = parse(reference)
    name = f"{host}/{path}"
    end = f"@{digest}" if digest else f":{tag or DEFAULT_TAG}"
    tables = _tables(root, environ)
    fitting = [one for one in tables if one and f"{name}/".startswith(f"{one}/")]
    if not fitting:
        return [Location(reference)]
    prefix = max(fitting, key=len)
    table, rest = tables[prefix], name[len(prefix) :]
    found = [
        Location(f"{text(one.get('location'))}{rest}{end}", one.get("insecure") is True)
        for one in mappings(table.get("mirror"))
    ]
    if table.get("blocked") is not True:
        moved = f"{text(table.get('location')) or prefix}{rest}{end}"
        found.append(Location(moved, table.get("insecure") is True))
    return found


def login(reference: str, root: str, environ: Mapping[str, str]) -> Credentials | None:
    host, path, _, _ = parse(reference)
    keys = [f"{host}/{path}"]
    while "/" in keys[-1]:
        keys.append(keys[-1].rpartition("/")[0])
    if host == DEFAULT_HOST:
        keys.append(_DOCKER_HUB)
    for file in _auth_files(environ):
        entries = mapping(parsed(_read(Path(f"{root}{file}"))).get("auths"))
        for entry in (mapping(entries.get(key)) for key in keys):
            found = Credentials(*_pair(text(entry.get("auth"))), text(entry.get("identitytoken")))
            if any(found):
                return found
    return None


def _context_for(host: str, root: str, *, verifies: bool) -> ssl.SSLContext:
    context = client_context(verifies=verifies)
    for folder in _CERTIFICATES:
        for file in sorted(Path(f"{root}{folder}/{host}").glob("*")):
            with suppress(OSError):  # ssl.SSLError is one
                if file.suffix == ".crt":
                    context.load_verify_locations(file)
                elif file.suffix == ".cert":
                    context.load_cert_chain(file, file.with_suffix(".key"))
    return context


def _tables(root: str, environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the ``[[registry]]`` tables by prefix; later files override earlier ones."""
    main = environ.get("CONTAINERS_REGISTRIES_CONF") or REGISTRIES
    drop_ins = sorted(Path(f"{root}{REGISTRIES}.d").glob("*.conf"))
    found = {}
    for file in (Path(f"{root}{main}"), *drop_ins):
        with suppress(ValueError, RecursionError):
            for table in mappings(tomli.loads(_read(file).decode()).get("registry")):
                found[text(table.get("prefix")) or text(table.get("location"))] = table
    return found


def _auth_files(environ: Mapping[str, str]) -> Iterator[str]:
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield named
        return
    runtime = environ.get("XDG_RUNTIME_DIR")
    yield f"{runtime}/containers/auth.json" if runtime else "/run/containers/0/auth.json"
    home = environ.get("HOME") or "/root"
    yield f"{home}/.config/containers/auth.json"
    yield f"{home}/.docker/config.json"


def _read(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(_LIMIT_BYTES)
    return b""
