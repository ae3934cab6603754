"""Where `optcc serve` listens: a socket that nobody else has, and loopback unless asked; what is of others stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.errors import InputError
from optcc.serve.listen import forget_unix_socket, identity, tcp_socket, unix_socket


def test_what_is_at_a_socket_s_place(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    live = unix_socket(path)
    with pytest.raises(InputError, match="in use"):
        unix_socket(path)
    live.close()  # what a service leaves that was killed
    again = unix_socket(path)
    again.close()
    precious = tmp_path / "precious"
    precious.write_text("data")
    with pytest.raises(InputError, match="cannot be listened on"):
        unix_socket(precious)
    assert precious.read_text() == "data"
    with pytest.raises(InputError, match="cannot be listened on"):
        unix_socket(tmp_path / "none" / "socket")
    with pytest.raises(InputError, match="cannot be listened on"):
        unix_socket(tmp_path / ("a" * 200))


def test_a_service_that_ends_leaves_the_socket_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    old = unix_socket(path)
    ours = identity(path)
    path.unlink()
    new = unix_socket(path)
    forget_unix_socket(path, ours)
    assert path.is_socket()
    forget_unix_socket(path, identity(path))
    assert not path.exists()
    forget_unix_socket(path, identity(path))
    old.close()
    new.close()


def test_only_loopback_unless_asked() -> None:
    for address in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(InputError, match="--allow-remote"):
            tcp_socket(address, 0, remote=False)
    with pytest.raises(InputError, match="not an address"):
        tcp_socket("example.org", 0, remote=True)
    open_to_all = tcp_socket("0.0.0.0", 0, remote=True)
    with pytest.raises(InputError, match="free port"):
        tcp_socket("0.0.0.0", open_to_all.getsockname()[1], remote=True)
    open_to_all.close()


def test_the_command_refuses_with_status_2(tmp_path: Path) -> None:
    for options, said in (
        (["--address", "0.0.0.0"], "--allow-remote"),
        (["--unix", str(tmp_path / "s"), "--port", "1"], "not both"),
        (["--concurrent", "0"], "limit out of range"),
    ):
        done = CliRunner().invoke(main, ["serve", *options])
        assert done.exit_code == 2
        assert said in done.output
