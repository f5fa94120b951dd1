from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pycrictl._proto import cri_pb2
from pycrictl.runtime.cri.calls.client import method
from pycrictl.runtime.cri.calls.redact import (
    LOG_LIMIT_CHARS,
    MASK,
    describe,
    quote_reference,
    redact_text,
    redacted,
)

NAMES = [
    method.name
    for service in cri_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
SECRET = "s3cr3t"
MANIFEST = "kubectl.kubernetes.io/last-applied-configuration"


def is_secret(field: FieldDescriptor) -> bool:
    """Decide by the field's name, independently of the code under test."""
    secrets = {"password", "auth", "identity_token", "registry_token", "url"}
    return field.name in secrets and field.type == field.TYPE_STRING


def plant(message: Any, depth: int = 0) -> int:
    """Fill all texts at any depth, secret ones with a secret; return the number of secrets."""
    planted = 0
    for field in message.DESCRIPTOR.fields:
        value_type = field.message_type
        if value_type is not None and value_type.GetOptions().map_entry:
            planted += plant_map(message, field, value_type)
        elif value_type is not None:
            if depth < 6:
                target = getattr(message, field.name)
                planted += plant(target.add() if field.is_repeated else target, depth + 1)
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, SECRET.encode())
            planted += 1
        elif field.type == field.TYPE_STRING:
            text = SECRET if is_secret(field) else f"plain-{field.name}"
            planted += text == SECRET
            if field.is_repeated:
                getattr(message, field.name).extend([text, text])
            else:
                setattr(message, field.name, text)
    return planted


def plant_map(message: Any, field: FieldDescriptor, entry: Descriptor) -> int:
    entries = getattr(message, field.name)
    if entry.fields_by_name["value"].type != FieldDescriptor.TYPE_STRING:
        return 0
    if field.name == "info":
        entries["info"] = '{"env": ["TOKEN=' + SECRET + '"]}'
    elif field.name == "annotations":
        entries[MANIFEST] = f"value: {SECRET}"
        entries["plain-key"] = "plain-value"
    else:
        entries["plain-key"] = "plain-value"
        return 0
    return 1


MESSAGES: list[Any] = [
    kind for name in NAMES for kind in (method(name).request_type, method(name).response_type)
]


def test_no_secret_survives_in_any_message() -> None:
    for kind in MESSAGES:
        message = kind()
        planted = plant(message)
        before = message.SerializeToString(deterministic=True)
        text = describe(message)
        name = kind.DESCRIPTOR.name
        assert SECRET not in text, name
        assert SECRET.encode() not in redacted(message).SerializeToString(), name
        assert text.count(MASK) >= min(planted, 1), name
        assert message.SerializeToString(deterministic=True) == before, name


def test_environment_variables_keep_their_names() -> None:
    config = cri_pb2.ContainerConfig(envs=[cri_pb2.KeyValue(key="TOKEN", value=b"hunter2")])
    request = cri_pb2.CreateContainerRequest(config=config)
    assert describe(request) == '{config { envs { key: "TOKEN" value: "[redacted]" } }}'


def test_control_characters_are_escaped() -> None:
    text = describe(cri_pb2.VersionResponse(runtime_name="a\x1b[2J\nb\u202e"))
    assert text.isprintable()
    assert "\x1b" not in text


def test_long_messages_are_cut() -> None:
    images = [cri_pb2.Image(id="x" * 100)] * 1000
    text = describe(cri_pb2.ListImagesResponse(images=images))
    assert len(text) < LOG_LIMIT_CHARS + 100
    assert text.endswith(" more characters)}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Get "https://joe:pw@reg.io/v2/": EOF', 'Get "https://[redacted]@reg.io/v2/": EOF'),
        ("http://token@reg.io/v2", "http://[redacted]@reg.io/v2"),
        (
            "https://s3/x?X-Amz-Date=1&X-Amz-Signature=ab%2Fc&y=2",
            "https://s3/x?X-Amz-Date=1&X-Amz-Signature=[redacted]&y=2",
        ),
        ('"https://r/?access_token=abc": 403', '"https://r/?access_token=[redacted]": 403'),
        ("docker://busybox@sha256:00", "docker://busybox@sha256:00"),
        ("reg.io:5000/app@sha256:00: not found", "reg.io:5000/app@sha256:00: not found"),
        ("https://reg.io/v2/a@sha256:00", "https://reg.io/v2/a@sha256:00"),
        ("is it a token=abc?", "is it a token=abc?"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert redact_text(text) == expected


def test_references_that_hold_a_password() -> None:
    reference = f"https://u:{SECRET}@reg.example/x:1"
    assert quote_reference(reference) == f'"https://{MASK}@reg.example/x:1"'
    assert quote_reference("reg.example/x@sha256:11") == '"reg.example/x@sha256:11"'
    request = cri_pb2.PullImageRequest(image={"image": reference, "annotations": {"a": reference}})
    assert describe(request).count(f"https://{MASK}@reg.example/x:1") == 2
    assert SECRET not in describe(request)
