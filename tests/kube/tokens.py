"""Bearer tokens and TokenReviews of a stand-in for an API server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.kube.access import User

API_AUDIENCE = "https://kubernetes.default.svc"


@dataclass(frozen=True)
class Token:
    """The claims of a token, as known to the server that signed it."""

    user: User
    audiences: tuple[str, ...] = (API_AUDIENCE,)
    good_until: float = float("inf")

    def trouble(self, audiences: tuple[str, ...]) -> str:
        """Return why the token is invalid for all of these audiences; empty if it is valid."""
        if time.time() > self.good_until:
            return "[invalid bearer token, service account token has expired]"
        if not set(self.audiences) & set(audiences):
            has, wanted = (
                " ".join(f'"{audience}"' for audience in side)
                for side in (self.audiences, audiences)
            )
            return (
                f"[invalid bearer token, token audiences [{has}] is invalid for the target"
                f" audiences [{wanted}]]"
            )
        return ""


def review(tokens: Mapping[str, Token], document: dict[str, Any]) -> dict[str, Any]:
    spec = document["spec"]
    audiences = tuple(spec.get("audiences") or (API_AUDIENCE,))
    token = tokens.get(spec.get("token", ""))
    trouble = token.trouble(audiences) if token else "invalid bearer token"
    status: dict[str, Any]
    if token is None or trouble:
        status = {"error": trouble, "user": {}}
    else:
        user = token.user
        status = {
            "authenticated": True,
            "user": {
                "username": user.name,
                **({"uid": user.uid} if user.uid else {}),
                "groups": list(user.all_groups),
                "extra": {key: list(value) for key, value in user.extra.items()},
            },
            "audiences": [audience for audience in token.audiences if audience in audiences],
        }
    return {**document, "status": status}
