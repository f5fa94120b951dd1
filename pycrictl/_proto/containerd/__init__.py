"""Generated from proto/containerd by proto/generate.py, as protoc writes it."""
