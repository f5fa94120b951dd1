"""containerd's image records: the names of images, and the CRI's view of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.field_mask_pb2 import FieldMask

from pycrictl._proto.containerd import images_pb2, types_pb2
from pycrictl.archives.documents import Descriptor
from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.errors import AlreadyExists, NotFound

_LABELS: Final = {"io.cri-containerd.image": "managed"}


def find_target(client: ContainerdClient, names: Iterable[str]) -> Descriptor:
    """Return the manifest or index that any of these names points to; else raise ``NotFound``."""
    for record in client.images(*(f"name=={name}" for name in names)):
        target = record.target
        return {"mediaType": target.media_type, "digest": target.digest, "size": target.size}
    raise NotFound("containerd has no record of the image")


def write_record(client: ContainerdClient, name: str, target: Descriptor) -> None:
    """Let a canonical name point to a manifest or index, whatever it has pointed to before."""
    image = images_pb2.Image(name=name, labels=_LABELS, target=as_message(target))
    try:
        create = images_pb2.CreateImageRequest(image=image)
        client.call("images.v1.Images/Create", create, images_pb2.CreateImageResponse)
    except AlreadyExists:
        update = images_pb2.UpdateImageRequest(image=image, update_mask=FieldMask(paths=["target"]))
        client.call("images.v1.Images/Update", update, images_pb2.UpdateImageResponse)


def as_message(entry: Descriptor) -> types_pb2.Descriptor:
    return types_pb2.Descriptor(
        media_type=entry["mediaType"], digest=entry["digest"], size=entry["size"]
    )
