"""What is no attribute in a copy of sysfs, and what is no file where a topology is named: a message, and no waiting."""

from __future__ import annotations

import os
import shutil
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.discover import load_topology
from optcc.errors import InputError
from optcc.files.reading import kind_of, open_regular, read_regular
from optcc.machine.sysfs import Folder
from tests.test_discover_sysfs import card, rdma

RATE = "devices/pci0000:10/0000:10:01.0/0000:10:02.0/0000:11:01.0/infiniband/mlx5_0/ports/1/rate"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "sys"
    card(root, 0x10, 0, "0x030200", "0x10de")
    rdma(root, 0x10, "mlx5_0")
    return root


def listening(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a socket has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"400 Gb/sec" * 1000)
        file.truncate(2**33)


STRANGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "a FIFO"),
    "socket": (listening, "a socket"),
    "folder": (os.mkdir, "folder"),
    "loop": (lambda path: path.symlink_to("rate"), "a link that leads in a circle"),
    "huge": (huge, "at most 4096 bytes"),
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.timeout(60)
def test_what_is_no_attribute_is_told(tree: Path, kind: str) -> None:
    make, says = STRANGE[kind]
    (tree / RATE).unlink()
    make(tree / RATE)
    for command in (["topo", str(tree)], ["doctor", "--sysfs", str(tree.parent)]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2, done.output
        assert "mlx5_0/ports/1/rate" in done.stderr
        assert says in done.stderr


def test_a_device_is_no_attribute() -> None:
    """One that is there: only root may make one in `tree`."""
    with pytest.raises(InputError, match=r"zero: .*a character device"):
        Folder(Path("/dev")).text("zero")


def test_an_attribute_that_may_not_be_read_is_told(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is made up: root may read everything."""

    def refuse(path: Path, most: int) -> bytes:
        if str(path).endswith("/rate"):
            raise PermissionError(13, "Permission denied", str(path))
        return read_regular(path, most)

    monkeypatch.setattr("optcc.machine.sysfs.read_regular", refuse)
    with pytest.raises(InputError, match=r"ports/1/rate: cannot be read.*Permission denied"):
        load_topology(str(tree))


def test_what_a_driver_refuses_is_empty(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for unused entries of GID tables, and the speed of interfaces that are down."""

    def refuse(path: Path, most: int) -> bytes:
        raise OSError(22, "Invalid argument", str(path))

    found = Folder(tree)
    assert found.text(RATE).startswith("400")
    monkeypatch.setattr("optcc.machine.sysfs.read_regular", refuse)
    assert found.text(RATE) == ""


def test_a_link_out_of_the_copy_is_as_if_it_were_not_there(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("400 Gb/sec")
    for target in (outside, Path("../" * 20) / str(outside)[1:]):
        (tree / RATE).unlink()
        (tree / RATE).symlink_to(target)
        assert Folder(tree).text(RATE) == ""
        assert (tree / RATE).read_text() == "400 Gb/sec", "the control: the system would follow it"


def test_links_that_a_copy_made_into_text_are_links(tree: Path, tmp_path: Path) -> None:
    """zip and git on Windows write the target of a link into a file."""
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy / "sys", symlinks=True)
    links = [path for path in copy.rglob("*") if path.is_symlink()]
    assert len(links) > 3
    for path in links:
        target = os.readlink(path)
        path.unlink()
        path.write_text(target)
    assert load_topology(str(copy)).cluster == load_topology(str(tree)).cluster
    with tarfile.open(tmp_path / "copy.tar", "w") as archive:
        archive.add(copy / "sys", "sys")
    assert load_topology(str(tmp_path / "copy.tar")).cluster == load_topology(str(tree)).cluster


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder"])
@pytest.mark.timeout(60)
def test_what_is_no_file_is_told_where_a_topology_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "topology"
    STRANGE[kind][0](path)
    done = CliRunner().invoke(main, ["topo", str(path)])
    assert done.exit_code == 2, done.output
    assert ("class/infiniband" if kind == "folder" else STRANGE[kind][1]) in done.stderr


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc/self"])
@pytest.mark.timeout(60)
def test_devices_and_other_folders_are_told_where_a_topology_is_named(path: str) -> None:
    done = CliRunner().invoke(main, ["topo", path])
    assert done.exit_code == 2, done.output
    assert "a character device" in done.stderr or "cannot be read, expected an NCCL topology XML" in done.stderr


def test_a_loop_of_links_is_told_where_a_topology_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    done = CliRunner().invoke(main, ["topo", str(tmp_path / "loop")])
    assert done.exit_code == 2
    assert "symbolic links" in done.stderr


def test_a_file_that_changes_under_our_hands_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A regular file when it is looked at, a FIFO when it is opened: neither waited for nor read."""
    regular, fifo = tmp_path / "regular", tmp_path / "fifo"
    regular.write_text("1")
    os.mkfifo(fifo)
    assert kind_of(fifo.stat().st_mode) == "a FIFO"
    before = regular.stat()
    monkeypatch.setattr("optcc.files.reading.os.stat", lambda path: before)
    with pytest.raises(OSError, match="a FIFO"):
        open_regular(fifo)
