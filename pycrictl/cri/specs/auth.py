"""Credentials for a registry, in the forms that the command line takes (CRI ``AuthConfig``)."""

from __future__ import annotations

from pycrictl._proto import cri_pb2
from pycrictl.errors import UsageError


def auth_config(
    *, creds: str = "", auth: str = "", username: str = "", password: str = ""
) -> cri_pb2.AuthConfig | None:
    """Make the credentials of a pull; None if none were given.

    ``creds`` is ``USER[:PASSWORD]``, ``auth`` the Base64 of the same, handed to the runtime
    undecoded; ``username`` wins over both. No error holds a secret.
    """
    if username:
        return cri_pb2.AuthConfig(username=username, password=password)
    if creds and auth:
        raise UsageError("--creds and --auth cannot be combined")
    if auth:
        return cri_pb2.AuthConfig(auth=auth)
    if creds:
        user, _, secret = creds.partition(":")
        if not user:
            raise UsageError("--creds needs a user name before the colon")
        return cri_pb2.AuthConfig(username=user, password=secret)
    return None
