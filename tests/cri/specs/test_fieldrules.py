from __future__ import annotations

import re
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from pycrictl._proto import cri_pb2
from pycrictl.cri.specs import fieldrules


def field(message: Any, name: str) -> FieldDescriptor:
    found: FieldDescriptor = message.DESCRIPTOR.fields_by_name[name]
    return found


SIGNED = field(cri_pb2.LinuxContainerResources, "cpu_quota")
UNSIGNED = field(cri_pb2.HugepageLimit, "limit")


@pytest.mark.parametrize("text", ["", "-", "+1", " 1", "1.0", "0x1", "1e3", "١", "--1", "1_0"])
def test_other_text_is_no_number(text: str) -> None:
    for wide in (SIGNED, UNSIGNED):
        assert not re.fullmatch(str(fieldrules.text_pattern(wide)), text)


def test_narrow_numbers_have_no_text() -> None:
    assert fieldrules.text_pattern(field(cri_pb2.PortMapping, "host_port")) is None


def test_spellings() -> None:
    assert fieldrules.spellings(field(cri_pb2.ContainerConfig, "log_path")) == (
        "log_path",
        "logPath",
    )
    assert fieldrules.spellings(field(cri_pb2.ContainerConfig, "tty")) == ("tty",)
    assert fieldrules.spellings(field(cri_pb2.ContainerConfig, "CDI_devices")) == (
        "CDI_devices",
        "CDIDevices",
    )


def test_maps_are_known() -> None:
    value = fieldrules.map_value(field(cri_pb2.ContainerConfig, "labels"))
    assert value is not None
    assert value.type == FieldDescriptor.TYPE_STRING
    for name in ("mounts", "command", "linux", "tty"):
        assert fieldrules.map_value(field(cri_pb2.ContainerConfig, name)) is None


def test_enum_names_keep_the_order_of_the_api() -> None:
    enum = field(cri_pb2.NamespaceOption, "network").enum_type
    assert enum is not None
    assert fieldrules.enum_names(enum) == {"POD": 0, "CONTAINER": 1, "NODE": 2, "TARGET": 3}
