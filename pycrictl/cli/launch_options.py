"""Shared code of ``create`` and ``run``: files, credentials and connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pycrictl.cli import options
from pycrictl.cli.pulling import find_keyring, pull_image
from pycrictl.cri.configurations import auth_config, load_container, load_pod
from pycrictl.cri.lifecycle.launch import Launch
from pycrictl.errors import UsageError

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2
    from pycrictl.cli.context import AppContext
    from pycrictl.cri.calls.client import CriClient

CANCEL_FLAG = "--cancel-timeout"


@dataclass(frozen=True, slots=True)
class PullOptions:
    """The options of ``create`` and ``run`` about pulls of the container's images."""

    auth: options.Auth = ""
    creds: options.Creds = ""
    username: options.Username = ""
    no_pull: options.NoPull = False
    with_pull: options.WithPull = False
    pull_timeout: options.PullTimeout = 0.0

    def __post_init__(self) -> None:
        if self.no_pull and self.with_pull:
            raise UsageError("--no-pull and --with-pull cannot be combined")
        if self.pull_timeout < 0:
            raise UsageError("--pull-timeout must not be negative")

    def decide(self, by_default: bool) -> bool:
        return self.with_pull or (by_default and not self.no_pull)


def ask_password(app: AppContext) -> str:
    try:
        password = app.env.ask_password()
        (password or "").encode()  # in the C locale, Python reads any bytes
    except UnicodeError:
        raise UsageError("the password is not UTF-8") from None
    if password is None:
        raise UsageError("the password is missing: standard input is empty")
    return password


@contextmanager
def launch_clients(
    app: AppContext, cancel_timeout_s: float, *, needs_images: bool = False
) -> Iterator[tuple[CriClient, CriClient]]:
    if cancel_timeout_s < 0:
        raise UsageError(f"{CANCEL_FLAG} must not be negative")
    with app.open_clients(needs_images=needs_images) as (client, images):
        if cancel_timeout_s:
            client.timeout_s, client.timeout_flag = cancel_timeout_s, CANCEL_FLAG
        yield client, images


@contextmanager
def prepared(
    app: AppContext, files: tuple[str, str], how: PullOptions, timeout_s: float, *, pulls: bool
) -> Iterator[tuple[CriClient, Launch]]:
    """Read the container and pod files, then connect: nothing is sent if a file is invalid."""
    container = load_container(files[0], app.env.warn)
    pod = load_pod(files[1], app.env.warn)
    auth = auth_config(
        creds=how.creds,
        auth=how.auth,
        username=how.username,
        password=ask_password(app) if pulls and how.username else "",
    )
    with launch_clients(app, timeout_s, needs_images=pulls) as (client, images):

        def pull(request: cri_pb2.PullImageRequest) -> str:
            outlet = app.outlet("auto", stdout="result")
            timeout_s, keyring = how.pull_timeout, find_keyring(app)
            return pull_image(
                images,
                request,
                outlet,
                timeout_s=timeout_s,
                keyring=keyring,
                persona=app.persona,
            )

        before = pull if pulls else None
        yield client, Launch(container, pod, pull=before, auth=auth)
