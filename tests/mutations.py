"""Files that are broken at random."""

from __future__ import annotations

import random

TOKENS = [
    *(b'"', b"{", b"}", b"[", b"]", b":", b",", b"\n", b"\0", b"\xff", b"<", b"# "),
    *(b"-1", b"0", b"9" * 24, b"nan", b"1e999", b"null", b"server0", b"server1", b"NCCL INFO "),
]


def mutated(text: str, rng: random.Random) -> str:
    """One to four changes: cut, delete, repeat, overwrite or insert, at random places."""
    data = text.encode()
    for _ in range(rng.randint(1, 4)):
        i, length = rng.randrange(len(data) + 1), rng.randint(0, 60)
        new = rng.choice(TOKENS) if rng.random() < 0.8 else rng.randbytes(rng.randint(0, 8))
        kind = rng.choice(("cut", "delete", "repeat", "overwrite", "insert", "digit"))
        if kind == "cut":
            data = data[:i]
        elif kind == "delete":
            data = data[:i] + data[i + length :]
        elif kind == "repeat":
            data = data[: i + length] + data[i:]
        elif kind == "insert":
            data = data[:i] + new + data[i:]
        elif kind == "overwrite":
            data = data[:i] + new + data[i + len(new) :]
        elif digits := [k for k, byte in enumerate(data) if 48 <= byte <= 57]:
            place = rng.choice(digits)
            data = data[:place] + str(rng.randrange(10)).encode() + data[place + 1 :]
    return data.decode("utf-8", "replace")
