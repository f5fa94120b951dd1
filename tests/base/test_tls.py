"""Every Python judges certificates alike, and as Go does."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from pycrictl.base.tls import client_context
from tests.streams.servers import NAMES, Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Make certificates of an authority without a declared key usage, as in old clusters."""
    return make_certificates(tmp_path_factory.mktemp("certificates"), NAMES, True)


def greet(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Make a handshake, in memory, with a server that has these certificates."""
    ends = [ssl.MemoryBIO(), ssl.MemoryBIO()]
    client = context.wrap_bio(ends[0], ends[1], server_hostname="node.test")
    server = certificates.server_context().wrap_bio(ends[1], ends[0], server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    client.do_handshake()


def test_an_authority_without_extensions(certificates: Certificates) -> None:
    greet(client_context(ca_file=certificates.ca), certificates)
    greet(client_context(ca_data=Path(certificates.ca).read_text()), certificates)


def test_a_trusted_certificate_that_is_no_authority(certificates: Certificates) -> None:
    own = Path(certificates.ca).with_name("server.pem").read_text()
    greet(client_context(ca_data=own), certificates)


def test_an_authority_that_is_not_trusted(certificates: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        greet(client_context(), certificates)
    greet(client_context(verifies=False), certificates)
