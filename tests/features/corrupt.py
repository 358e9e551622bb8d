"""Damage a file as a bad disk or a broken writer does; the same seed, the same bytes."""

import random

MARKS = (0, 1, 127, 128, 255)
"""Bytes that lengths in a header turn on."""


def corrupted(content: bytes, seed: int) -> bytes:
    """Change one to eight bytes; a file in four is cut off as well."""
    rng = random.Random(seed)
    data = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] = rng.choice((*MARKS, rng.randrange(256)))
    if seed % 4 == 3:
        del data[rng.randrange(1, len(data)) :]
    return bytes(data)
