"""What registries say of images: manifests, digests of tags."""
