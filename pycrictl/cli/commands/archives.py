"""``pycrictl save``, ``load`` and ``tag``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Literal, TypeVar

import typer

from pycrictl._proto import cri_pb2
from pycrictl.archives import documents, with_skopeo
from pycrictl.archives.loading import Load
from pycrictl.archives.members import Member, of_stream, opened
from pycrictl.archives.records import find_target, write_record
from pycrictl.archives.saving import ALL_PLATFORMS, Image, Saving
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.containerd.config_toml import config_path, from_file
from pycrictl.containerd.daemon import listener_pid
from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import ArchiveError, Interrupted, NotFound, Unimplemented, UsageError
from pycrictl.progress.reference import canonical
from pycrictl.pulls.tracker import Tracker
from pycrictl.show.displays.outlet import Outlet
from pycrictl.show.displays.pull_lines import open_display
from pycrictl.units import escape, quote

T = TypeVar("T")

_SNAPSHOTTER: Final = "overlayfs"

ArchiveFile = Annotated[
    str, options.file_option("--output", "-o", help="Write the archive to FILE; - is stdout.")
]


def save(
    ctx: typer.Context,
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE...", autocompletion=complete.images, help="Names or IDs."),
    ],
    output: ArchiveFile = "-",
    format_: Annotated[
        Literal["oci", "docker"],
        typer.Option("--format", help="An OCI image layout, or for versions of Docker before 25."),
    ] = "oci",
    platform: Annotated[
        str,
        typer.Option(
            "--platform",
            metavar="OS/ARCH[/VARIANT]|all",
            help="Save the image for this platform (default: the node's).",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Save images as an archive.

    The archive is an OCI image layout, which docker, podman, skopeo, ctr and kind can load.

    Example: pycrictl save docker.io/library/busybox:1.36 -o /tmp/busybox.tar
    """
    app: AppContext = ctx.obj
    if output == "-" and app.env.stdout_is_terminal:
        raise UsageError("an archive is not written to a terminal", hint="give a file with -o")
    if platform and platform != ALL_PLATFORMS and not documents.PLATFORM.fullmatch(platform):
        raise UsageError(
            f"--platform {quote(platform)} is not a platform", hint="such as linux/arm64, or all"
        )
    with app.open_client("image") as client:
        chosen = [_find(client, image) for image in images]
        if _is_crio(client):
            if len(chosen) > 1 or output == "-":
                raise Unimplemented("on CRI-O, one image is saved at a time, and to a file")
            name = chosen[0].names[0] if chosen[0].names else ""
            with _replacing(output) as (path, _):
                path.unlink()  # skopeo refuses to change an archive
                with_skopeo.save(chosen[0].known[0], name, str(path), format_)
            return
        wanted = platform or documents.own_platform()
        saving = Saving(_containerd(client), chosen, platform=wanted, is_docker=format_ == "docker")
        if output == "-":
            _write(saving.pieces(), app.env.stdout.buffer)
        else:
            with _replacing(output) as (_, file):
                _write(saving.pieces(), file)


def load(
    ctx: typer.Context,
    input_: Annotated[
        str,
        options.file_option("--input", "-i", help="Read the archive from FILE; - is stdin."),
    ] = "-",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name of an image that has none.")
    ] = "",
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Unpack at once, not for the first container.")
    ] = False,
    progress: options.Progress = "auto",
) -> None:
    """Load images from an archive.

    Reads OCI image layouts (a tar file or a folder) and the format of docker save, plain or
    compressed, and prints the names of the images. Layers that are present are not written again.

    Example: pycrictl load -i /tmp/busybox.tar
    """
    app: AppContext = ctx.obj
    if input_ == "-" and app.env.stdin_is_terminal:
        raise UsageError("no archive on stdin", hint="name a file with -i")
    with app.open_client("image") as client:
        containerd = None if _is_crio(client) else _containerd(client)
        try:
            with _members(app, input_) as members:
                if containerd is None:
                    names = _load_by_skopeo(members, input_, name)
                else:
                    work = Load(
                        containerd,
                        title=_title(input_),
                        snapshotter=_snapshotter(containerd) if unpack else "",
                        free_bytes=partial(_free_bytes, client),
                    )
                    run = partial(work.run, members, name=name)
                    names = list(_shown(app.outlet(progress, stdout="result"), work, run))
        except KeyboardInterrupt:
            if containerd is not None:
                containerd.close()
            raise Interrupted(
                "the load was stopped; what has arrived is kept for a day, for the next one"
            ) from None
        except OSError as exc:
            raise ArchiveError(f"cannot read {_title(input_)}: {exc.strerror or exc}") from None
    for each in names:
        app.env.stdout.write(f"{escape(each)}\n")


def _shown(outlet: Outlet, work: Load, run: Callable[[], T]) -> T:
    """Return the result of ``run``, which another thread computes, and show how far it is."""
    result: Future[T] = Future()

    def in_thread() -> None:
        try:
            result.set_result(run())
        except BaseException as exc:  # raised again by whoever waits for the result
            result.set_exception(exc)

    threading.Thread(target=in_thread, daemon=True).start()
    with closing(open_display(outlet)) as display:
        tracker = Tracker()
        while not wait([result], outlet.interval_s).done:
            tracker.apply(work.state(), now=time.monotonic())
            display.show(tracker.view(time.monotonic(), time.time()))
        if tracker.pulls:
            tracker.apply(work.state(), now=time.monotonic())
            display.show(tracker.view(time.monotonic(), time.time()))
    return result.result()


def tag(
    ctx: typer.Context,
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", autocompletion=complete.images, help="Name or ID.")
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Another name for it.")],
) -> None:
    """Give an image another name.

    Example: pycrictl tag docker.io/library/busybox:1.36 registry.example/tools/busybox:1.36
    """
    app: AppContext = ctx.obj
    with app.open_client("image") as client:
        found = _find(client, image)
        if _is_crio(client):
            with_skopeo.tag(found.known[0], documents.checked_name(new))
        else:
            containerd = _containerd(client)
            write_record(
                containerd, documents.checked_name(new), find_target(containerd, found.known)
            )


def _find(client: CriClient, word: str) -> Image:
    request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=word))
    found = client.call("ImageStatus", request).image
    if not found.id:
        raise NotFound(f"no such image: {quote(word)}")
    known = (*found.repo_tags, *found.repo_digests, found.id)
    named = tuple(name for name in found.repo_tags if name == canonical(word))
    is_id = found.id.rpartition(":")[2].startswith(word.rpartition(":")[2])
    return Image(known, tuple(found.repo_tags) if is_id else named)


def _is_crio(client: CriClient) -> bool:
    name: str = client.call("Version", cri_pb2.VersionRequest()).runtime_name
    return name.lower() == "cri-o"


def _containerd(client: CriClient) -> ContainerdClient:
    containerd = ContainerdClient(client.path, timeout_s=client.timeout_s)
    containerd.version()  # raises for another runtime
    return containerd


def _snapshotter(containerd: ContainerdClient) -> str:
    return from_file(config_path(listener_pid(containerd.endpoint))).snapshotter or _SNAPSHOTTER


def _free_bytes(client: CriClient) -> int | None:
    filesystems = client.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest()).image_filesystems
    for filesystem in filesystems:
        with suppress(OSError):
            state = os.statvfs(filesystem.fs_id.mountpoint)
            return state.f_bavail * state.f_frsize
    return None


# Files


def _title(path: str) -> str:
    return "standard input" if path == "-" else quote(path, 4096)


@contextmanager
def _members(app: AppContext, path: str) -> Iterator[Iterable[Member]]:
    if path == "-":
        with FileIO(app.env.stdin.fileno(), closefd=False) as file:
            yield of_stream(file)
    else:
        with opened(Path(path)) as members:
            yield members


@contextmanager
def _replacing(path: str) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield a file beside ``path`` that takes its place at the end, or is removed."""
    part = Path(f"{path}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield part, file
        part.replace(path)
    except OSError as exc:
        raise ArchiveError(f"cannot write {quote(path, 4096)}: {exc.strerror or exc}") from None
    finally:
        with suppress(OSError):
            part.unlink()


def _write(pieces: Iterable[bytes], file: BinaryIO) -> None:
    for piece in pieces:
        file.write(piece)
    file.flush()


def _load_by_skopeo(members: Iterable[Member], path: str, name: str) -> list[str]:
    if path == "-":
        raise Unimplemented("on CRI-O, archives are loaded from files", hint="name one with -i")
    found = {each.name: b"".join(each.pieces()) for each in members if each.name in documents.LISTS}
    is_docker = "index.json" not in found
    roots: Iterable[documents.Root | documents.DockerImage] = (
        documents.docker_images(found.get("manifest.json", b"[]"))
        if is_docker
        else documents.roots_of_index(found["index.json"])
    )
    names = [each for root in roots for each in root.names]
    transport = "docker-archive" if is_docker else "oci" if Path(path).is_dir() else "oci-archive"
    if len(names) > 1 or not (names or name):
        raise Unimplemented("on CRI-O, an archive of one image is loaded", hint="with --name")
    with_skopeo.load(transport, path, canonical(names[0] if names else name))
    return [canonical(names[0] if names else name)]
