"""Security: who may call what, decided before any other work and without a model.

`keys.py` reads the file of keys; `access.py` lets a request pass as a `Caller` or refuses it, and
writes audit lines. docs/security.md has the model of trust.
"""

import ipaddress
from functools import lru_cache

USERS_NOT_SHOWN = (
    "this server does not show its users; a key with the scope users may read them, and "
    "RECSYS_EXPOSE_USERS=true (recsys serve --expose-users) shows every user's history to everyone "
    "who can reach it"
)


@lru_cache(maxsize=1_000)
def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
