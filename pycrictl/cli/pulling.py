"""A pull with its progress, for every command that pulls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import Cancelled, DeadlineExceeded, RuntimeFault, Unavailable, UsageError
from pycrictl.base.units import quote
from pycrictl.cli import options
from pycrictl.cli.context import AppContext
from pycrictl.cli.persona import Persona
from pycrictl.diagnosis.error_causes import Words, pull_words, sandbox_words
from pycrictl.pulls.own.image import SharedLimit, Show, check_name, pull
from pycrictl.pulls.reference import parse
from pycrictl.pulls.registries.credentials import Keyring
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.calls.redact import redact_text
from pycrictl.runtime.cri.configurations import auth_config
from pycrictl.show.displays.outlet import Outlet
from pycrictl.show.displays.pull_lines import open_display


def pull_image(
    client: CriClient,
    request: cri_pb2.PullImageRequest,
    *,
    timeout_s: float,
    limit: SharedLimit | None = None,
    keyring: Keyring | None = None,
    persona: Persona,
) -> str:
    """Pull one image without showing it; return the runtime's reference to it.

    A ``timeout_s`` of 0 means no limit.
    ``keyring`` is for a request without credentials.
    """
    credentials = None
    if not persona.is_crictl:
        check_name(request.image.image)
    if keyring is not None and not request.HasField("auth"):
        credentials = keyring.find(parse(request.image.image))
        if credentials is not None:
            request.auth.CopyFrom(credentials.auth())
    try:
        return pull(client, request, timeout_s=timeout_s or None, limit=limit)
    except RuntimeFault as error:
        image = redact_text(request.image.image)
        words = pull_words(error.details, image)
        if words is not None and words.kind == "unauthorized" and credentials is not None:
            origin = credentials.origin
            words = words._replace(text=f"{words.text} with the credentials of {origin}")
        raise worded(error, words, f"pulling {quote(image)}", persona) from None


@dataclass(frozen=True, slots=True)
class CredentialOptions:
    """The options about credentials from files and the node, for requests without their own."""

    authfile: Annotated[
        str,
        options.file_option(
            "--authfile",
            help="Credentials as podman login writes them (default: $REGISTRY_AUTH_FILE).",
        ),
    ] = ""
    docker_config: Annotated[
        str,
        options.file_option(
            "--docker-config",
            help="Docker's configuration, with its logins (default: $DOCKER_CONFIG).",
        ),
    ] = ""
    no_credentials: Annotated[
        bool, typer.Option("--no-credentials", help="Use no credentials from files or the node.")
    ] = False

    def keyring(self, app: AppContext) -> Keyring | None:
        """Return the credentials; None if none are to be used.

        Under the name crictl, they are only used if an option names their file.
        """
        if self.no_credentials and (self.authfile or self.docker_config):
            raise UsageError("--no-credentials cannot be combined with credential files")
        if self.no_credentials:
            return None
        is_literal = app.persona.is_crictl
        environ = {} if is_literal else app.env.environ
        docker_config = self.docker_config or environ.get("DOCKER_CONFIG", "")
        files = (self.authfile, docker_config, environ.get("REGISTRY_AUTH_FILE", ""))
        return Keyring([*filter(None, files)], app.env.warn, of_node=not is_literal)


@dataclass(frozen=True, slots=True)
class LoginOptions:
    """The options about the credentials that a request sends itself."""

    auth: Annotated[
        str,
        typer.Option(
            "--auth", envvar="CRICTL_AUTH", metavar="B64", help="Base64 of USER:PASSWORD."
        ),
    ] = ""
    creds: Annotated[
        str,
        typer.Option(
            "--creds",
            envvar="CRICTL_CREDS",
            metavar="USER[:PASSWORD]",
            help="Credentials for a pull.",
        ),
    ] = ""
    username: Annotated[
        str,
        typer.Option("--username", "-u", metavar="USER", help="User name; asks for the password."),
    ] = ""

    def make(self, app: AppContext) -> cri_pb2.AuthConfig | None:
        password = _ask_password(app) if self.username else ""
        return auth_config(
            creds=self.creds, auth=self.auth, username=self.username, password=password
        )


def _ask_password(app: AppContext) -> str:
    try:
        password = app.env.ask_password()
        (password or "").encode()  # in the C locale, Python reads any bytes
    except UnicodeError:
        raise UsageError("the password is not UTF-8") from None
    if password is None:
        raise UsageError("the password is missing: standard input is empty")
    return password


def shown(outlet: Outlet) -> Show | None:
    if outlet.form == "none":
        return None
    return Show(partial(open_display, outlet), outlet.interval_s)


def worded(error: RuntimeFault, words: Words | None, action: str, persona: Persona) -> RuntimeFault:
    """Word an error as given by ``words``, if any; ``--debug`` logs the runtime's text."""
    if words is not None and _is_worded(error, persona):
        error.message, error.hint = f"{action}: {words.text}", words.advice
    return error


def _is_worded(error: RuntimeFault, persona: Persona) -> bool:
    is_own = isinstance(error, DeadlineExceeded | Cancelled | Unavailable)  # not from a registry
    return bool(error.details) and not is_own and not persona.is_crictl


@contextmanager
def worded_sandbox(name: str, persona: Persona) -> Iterator[None]:
    try:
        yield
    except RuntimeFault as error:
        action = f"running pod sandbox {quote(name)}"
        if not error.message.startswith(action):  # of a later step
            raise
        raise worded(error, sandbox_words(error.details), action, persona) from None
