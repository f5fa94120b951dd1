"""``kubectl container-cp``: what it needs beside a copy of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from pycrictl.copy.method import CopyOptions, Method
from pycrictl.copy.rules.spec import ContainerPath
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import Unimplemented
from pycrictl.kubectl import api_errors
from pycrictl.kubectl.copies.api import CopyApi
from pycrictl.kubectl.copies.over_api import OverApi
from pycrictl.kubectl.copies.patience import Patience
from pycrictl.kubectl.copies.saved import CopyRecord, Saved
from pycrictl.kubectl.kubectl_proxy import KubectlProxy
from pycrictl.kubectl.pod_selection import check_name, namespace_of
from pycrictl.kubectl.program import Kubectl


@dataclass(frozen=True)
class InCluster:
    """Where and how a copy in a cluster is made.

    Attributes:
        connection: options of kubectl.
        namespace: empty for that of kubectl's context, unless the pod names one.
        container: empty for the pod's default.
        local: the side that is not in the container, as typed.
    """

    connection: Sequence[str]
    options: CopyOptions
    environ: Mapping[str, str]
    namespace: str
    container: str
    retries: int | None
    resume: bool
    local: str

    @contextmanager
    def opened(self, path: ContainerPath, watch: Watch) -> Iterator[tuple[Method]]:
        """Yield the method for a container in a cluster. Only the main thread may call it.

        Raises:
            UsageError: the name of the namespace, pod or container is invalid.
            Unimplemented: there is no agent, or none that offers copies.
            PycrictlError: kubectl refused.
        """
        note = watch.note
        kubectl = Kubectl(self.connection, note)
        for what, text in (
            ("a namespace", path.pod or self.namespace),
            ("a pod", path.container),
            ("a container", self.container),
        ):
            check_name(what, text)
        namespace = path.pod or self.namespace or namespace_of(kubectl)
        options, rules = self.options, self.options.rules
        flags = (
            ("-L", options.follow),
            ("-a", rules.archive),
            ("--no-clobber", rules.no_clobber),
        )
        asked = CopyRecord(
            (*self.connection, *(flag for flag, is_given in flags if is_given)),
            namespace,
            path.container,
            self.container,
            "",
            self.local if self.local == "-" else os.path.abspath(self.local),  # noqa: PTH100 (of a final slash, too)
            "",
        )
        try:
            with (
                KubectlProxy(kubectl, self.environ) as proxy,
                closing(Saved(self.environ, note)) as saved,
            ):
                api = CopyApi(proxy.target, namespace, path.container)
                patience = Patience(note, retries=self.retries)
                yield (OverApi(api, asked, saved, patience, resume=self.resume),)
        except Unimplemented as exc:
            raise kubectl.why_not_served(api_errors.INSTALL_COPIES) from exc
