"""The credentials that a user and the node have for registries, in the order of their use.

First the files that the user names (``--authfile``, ``--docker-config`` or ``DOCKER_CONFIG``,
``REGISTRY_AUTH_FILE``), then what the kubelet has: its ``config.json``, and its credential provider
plugins (kubelet-credential-provider, exec API v1). The first that fits an image is used.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from pycrictl.base import noderoot
from pycrictl.base.errors import ConfigError
from pycrictl.base.foreign import mapping, mappings, parsed, text, texts
from pycrictl.base.processes import environ_of
from pycrictl.base.units import escape, quote
from pycrictl.node.kubelet import Kubelet, find_kubelet, read_document
from pycrictl.pulls.reference import Reference
from pycrictl.pulls.registries.credentials import (
    AuthFile,
    Login,
    ask_program,
    credentials_in,
    fitting,
)

PLUGIN_S: Final = 60.0
"""Time limit of a credential provider plugin, as the kubelet's."""

_KUBELET_ROOT: Final = "/var/lib/kubelet"
_API: Final = "credentialprovider.kubelet.k8s.io/"


class Source(Protocol):
    """One place of credentials; ``is_given`` if the user named it."""

    name: str
    is_given: bool

    def find(self, reference: Reference) -> Login | None:
        """Return the login for an image; raise ConfigError if the place is broken."""
        ...


class Keyring:
    """Sources of credentials, in order; ``warn`` is told of those of the node that are broken."""

    def __init__(self, sources: Sequence[Source], warn: Callable[[str], None]) -> None:
        self._sources = sources
        self._warn = warn
        self._known: dict[str, Login | None] = {}

    def find(self, reference: Reference) -> Login | None:
        """Return the login for an image; each repository is looked for once.

        Raises:
            ConfigError: a file that the user named, or a helper that it names, is broken.
        """
        if reference.name not in self._known:
            self._known[reference.name] = self._find(reference)
        return self._known[reference.name]

    def _find(self, reference: Reference) -> Login | None:
        log = logging.getLogger("pycrictl.registries")
        for source in self._sources:
            try:
                login = source.find(reference)
            except ConfigError as exc:
                if source.is_given:
                    raise
                self._warn(exc.message)
                continue
            where = f"none in {source.name}" if login is None else login.origin
            log.debug("credentials for %s: %s", reference.name, where)
            if login is not None:
                return login
        return None


def keyring_of(
    environ: Mapping[str, str],
    warn: Callable[[str], None],
    authfile: str,
    docker_config: str,
    *,
    of_node: bool = True,
) -> Keyring:
    """Return the keyring of a user and, with ``of_node``, of this node.

    ``authfile`` and ``docker_config`` may be empty. A Docker configuration is a folder with
    ``config.json``, or such a file.
    """
    folder = docker_config or environ.get("DOCKER_CONFIG", "")
    named = [authfile, "", environ.get("REGISTRY_AUTH_FILE", "")]
    if folder:
        named[1] = f"{folder}/config.json" if os.path.isdir(noderoot.given(folder)) else folder
    given = [AuthFile(noderoot.given(path), path, is_given=True) for path in named if path]
    return Keyring([*given, *(_kubelets() if of_node else ())], warn)


# The kubelet's


def _kubelets() -> Iterator[Source]:
    kubelet = find_kubelet(Path(noderoot.directory()))
    environ = environ_of(kubelet.pid)
    folders = [kubelet.root_dir or _KUBELET_ROOT, f"{environ.get('HOME', '')}/.docker"]
    for folder in dict.fromkeys((*folders, "/.docker")):  # the kubelet reads the first
        path = f"{folder}/config.json"
        if os.path.exists(local := noderoot.locate(path)):
            yield AuthFile(local, path, runs_helpers=False)
            break
    if kubelet.provider_config and kubelet.provider_bin_dir:
        yield ProviderPlugins(kubelet, environ or dict(os.environ))


class ProviderPlugins:
    """The credential provider plugins of a kubelet, run with its environment."""

    is_given = False

    def __init__(self, kubelet: Kubelet, environ: Mapping[str, str]) -> None:
        self.name = f"the kubelet's plugins ({kubelet.provider_config})"
        self._kubelet = kubelet
        self._environ = environ

    def find(self, reference: Reference) -> Login | None:
        """Run the plugins for an image until one has its credentials.

        Those that need the token of a service account are left out.
        """
        if noderoot.directory() != "/":
            raise ConfigError(f"{self.name} are not run from another root")
        for provider in self._providers():
            images = texts(provider.get("matchImages"))
            if not fitting(images, reference) or mapping(provider.get("tokenAttributes")):
                continue
            auth = self._ask(provider, reference)
            found = credentials_in(mapping(auth.get(fitting(auth, reference))))
            if found is not None:
                return Login(found, f"the kubelet's plugin {text(provider.get('name'))}")
        return None

    def _providers(self) -> list[dict[str, Any]]:
        path = Path(self._kubelet.provider_config)
        files = sorted(path.iterdir()) if os.path.isdir(path) else [path]
        found = []
        for file in files:
            try:
                found += mappings(read_document(str(file)).get("providers"))
            except OSError as exc:
                raise ConfigError(f"cannot read {quote(str(file), 4096)}: {exc.strerror}") from None
        return found

    def _ask(self, provider: Mapping[str, Any], reference: Reference) -> Mapping[str, Any]:
        """Return the ``auth`` of a plugin's response, which may hold for other images too."""
        name, version = text(provider.get("name")), text(provider.get("apiVersion"))
        what = f"the kubelet's plugin {quote(name)}"
        if not name or "/" in name or not version.startswith(_API):
            raise ConfigError(f"{what}: its name or apiVersion is invalid")
        variables = mappings(provider.get("env"))
        environ = {text(one.get("name")): text(one.get("value")) for one in variables}
        question = {
            "apiVersion": version,
            "kind": "CredentialProviderRequest",
            "image": reference.name,
        }
        done = ask_program(
            what,
            [f"{self._kubelet.provider_bin_dir}/{name}", *texts(provider.get("args"))],
            json.dumps(question).encode(),
            limit_s=PLUGIN_S,
            environ={**self._environ, **environ},
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
            raise ConfigError(f"{what} failed ({done.returncode}): {escape(said[:200])}")
        answer = parsed(done.stdout)
        if answer.get("kind") != "CredentialProviderResponse":
            raise ConfigError(f"{what} did not answer as a credential provider")
        return mapping(answer.get("auth"))
