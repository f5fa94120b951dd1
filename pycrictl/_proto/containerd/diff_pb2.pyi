from google.protobuf import any_pb2 as _any_pb2
from pycrictl._proto.containerd import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ApplyRequest(_message.Message):
    __slots__ = ("diff", "mounts", "payloads", "sync_fs")
    class PayloadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _any_pb2.Any
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...
    DIFF_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    SYNC_FS_FIELD_NUMBER: _ClassVar[int]
    diff: _types_pb2.Descriptor
    mounts: _containers.RepeatedCompositeFieldContainer[_types_pb2.Mount]
    payloads: _containers.MessageMap[str, _any_pb2.Any]
    sync_fs: bool
    def __init__(self, diff: _Optional[_Union[_types_pb2.Descriptor, _Mapping]] = ..., mounts: _Optional[_Iterable[_Union[_types_pb2.Mount, _Mapping]]] = ..., payloads: _Optional[_Mapping[str, _any_pb2.Any]] = ..., sync_fs: _Optional[bool] = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ("applied",)
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    applied: _types_pb2.Descriptor
    def __init__(self, applied: _Optional[_Union[_types_pb2.Descriptor, _Mapping]] = ...) -> None: ...
